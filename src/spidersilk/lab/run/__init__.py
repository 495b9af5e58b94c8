"""One run or many: configs, the runner, worker processes."""
