"""The command `spidersilk`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

from spidersilk.lab.commands import app, console, reproduce, runs, theory
from spidersilk.lab.data.files import DataError
from spidersilk.lab.run import team
from spidersilk.lab.run.folder import RunError
from spidersilk.parallel.agreement import DisagreementError
from spidersilk.parallel.all_reduce import WorkerLostError

COMMANDS = (reproduce, runs, theory)  # importing a module adds its commands to `app`


def main() -> None:
    """Run the command; an error that the user can fix is printed in one line, without a traceback."""
    try:
        team.check_command()
        console.quiet = not team.team().writes
        app()
    except (ValueError, DataError, RunError, OSError, DisagreementError, WorkerLostError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    finally:
        team.leave()


if __name__ == "__main__":
    main()
