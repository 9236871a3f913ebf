"""The program, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dorm.cli.main import main
from dorm.cli.output import console

if TYPE_CHECKING:
    from pathlib import Path

Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs the program in this process; returns exit code, standard output and standard error."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run
