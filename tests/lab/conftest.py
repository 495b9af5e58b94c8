import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command in this process; its exit code, and what it printed."""
    cli = pytest.importorskip("spidersilk.lab.cli", reason="needs the extra [lab]")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spidersilk", *words])
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return run
