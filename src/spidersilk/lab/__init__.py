"""The paper's experiments: data, tasks, runner, report, and the command `spidersilk`. Needs the extra `[lab]`."""
