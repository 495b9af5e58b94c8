"""One run and many: configs, optimizers by name, the runner, processes, and what a run leaves behind."""
