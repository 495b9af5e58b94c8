"""Runs in a process of their own.

`python -m spidersilk.lab.run.worker job.yaml folder [--resume]` does one run. With `--serve` instead, it does one run
after the other, as asked for on standard input, one line of JSON each: starting Python, torch and CUDA takes longer
than a short run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import from_yaml

PROGRESS = "progress.json"


def do(job: Path, folder: Path, resume: bool, until: float | None = None) -> str | None:
    """One run; what went wrong, in a line, or None."""
    last = 0.0

    def report(progress: runner.Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            runner.write_atomically(folder / PROGRESS, json.dumps(vars(progress)).encode())

    try:
        runner.run(from_yaml(job), folder, resume=resume, report=report, until=until)
    except (DataError, ValueError, runner.RunError, OSError) as error:
        return str(error).replace("\n", " ") or type(error).__name__
    finally:
        (folder / PROGRESS).unlink(missing_ok=True)
        job.unlink(missing_ok=True)
    return None


def serve() -> None:
    """Answer each line {"job", "folder", "resume", "until"} with a line {"error"}, until the input ends.

    What the runs print goes to standard error. Any other failure ends the process: the CUDA context may be broken.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        error = do(Path(asked["job"]), Path(asked["folder"]), asked["resume"], asked["until"])
        gc.collect()
        if "torch" in sys.modules and (torch := sys.modules["torch"]).cuda.is_initialized():
            torch.cuda.empty_cache()
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
    elif error := do(Path(sys.argv[1]), Path(sys.argv[2]), "--resume" in sys.argv):
        sys.exit(error)


if __name__ == "__main__":
    main()
