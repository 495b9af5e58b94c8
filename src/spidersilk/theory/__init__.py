"""The theorems as a planner, their constants measured, and whether sparse gradients would pay."""
