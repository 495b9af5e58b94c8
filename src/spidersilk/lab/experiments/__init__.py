"""Sets of runs: the paper's experiments, and tuning."""
