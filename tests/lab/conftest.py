import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command in this process; its exit code, and what it printed."""
    cli = pytest.importorskip("spidersilk.lab.cli", reason="needs the extra [lab]")
    output = pytest.importorskip("spidersilk.lab.commands.output", reason="needs the extra [lab]")

    def run(*words: str, width: int = 200) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spidersilk", *words])
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(output.console, "width", width)
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return run
