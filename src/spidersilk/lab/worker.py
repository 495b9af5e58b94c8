"""A run in a process of its own: `python -m spidersilk.lab.worker job.yaml folder [--resume]`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from spidersilk.lab import runner
from spidersilk.lab.batch import PROGRESS
from spidersilk.lab.config import from_yaml
from spidersilk.lab.files import DataError


def main() -> None:
    job, folder = Path(sys.argv[1]), Path(sys.argv[2])
    last = 0.0

    def report(progress: runner.Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            runner.write_atomically(folder / PROGRESS, json.dumps(vars(progress)).encode())

    try:
        runner.run(from_yaml(job), folder, resume="--resume" in sys.argv, report=report)
    except (DataError, ValueError, runner.RunError, OSError) as error:
        sys.exit(str(error).replace("\n", " "))
    finally:
        (folder / PROGRESS).unlink(missing_ok=True)
        job.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
