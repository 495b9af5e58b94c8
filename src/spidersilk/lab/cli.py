"""The command `spidersilk`: what was typed is done, and what goes wrong is said in one line."""

from __future__ import annotations

import os
import shlex
import signal
import sys

from spidersilk.lab.messages import error_line
from spidersilk.lab.run.errors import Interrupted, RunError

# What the extra [lab] brings, as modules.
EXTRA = ("numpy", "typer", "rich", "matplotlib", "jinja2", "sklearn", "scipy", "yaml", "tensorboard")
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"  # the variable by which torch itself knows


def main() -> None:
    """Run the command and exit: with 0 if all was done, 1 if a run did not finish, 2 if the command was refused."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        sys.exit(_run())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
    except Interrupted:
        _say_how_to_go_on()
        sys.exit(130)
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        error_line(message)
        sys.exit(2)
    finally:
        if UNDER_TORCHRUN in os.environ:
            from spidersilk.lab.run import team

            team.leave()


def _run() -> int:
    from spidersilk.lab.commands import app

    if UNDER_TORCHRUN in os.environ:
        from spidersilk.lab.commands.output import console
        from spidersilk.lab.run import team

        team.check_command()
        console.quiet = not team.team().writes
    return app(sys.argv[1:] or ["--help"], prog_name="spidersilk", standalone_mode=False) or 0


def _explain(error: Exception) -> str | None:
    """What to say of a mistake that the user can mend; None for a mistake of ours."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRA:
        return f"{error.name} is not installed, and the command needs it: pip install 'spidersilk[lab]'"
    if hasattr(error, "format_message"):  # typer's own, for an unknown option and the like
        return f"{error.format_message()} (spidersilk --help)"  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(error, ValueError | OSError):
        return str(error) or type(error).__name__

    from spidersilk.lab.data.files import DataError
    from spidersilk.parallel.agreement import DisagreementError
    from spidersilk.parallel.all_reduce import WorkerLostError

    return str(error) if isinstance(error, DataError | RunError | DisagreementError | WorkerLostError) else None


def _say_how_to_go_on() -> None:
    """The command line, with --resume where there is such an option."""
    from spidersilk.lab.commands.output import console

    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    again = f"`{shlex.join(['spidersilk', *words, '--resume'])}` goes on where it was"
    text = "the demo begins anew each time" if words[:1] == ["demo"] else again
    console.print(f"interrupted: {text}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
