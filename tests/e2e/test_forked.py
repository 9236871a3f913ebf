"""Forked programs are processes as others see them: tests find what runs in their folders by command line and environment."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e import forked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCRIPT = """\
import os, sys
shown = [open(f"/proc/self/{name}").read().rstrip(chr(0)) for name in ("cmdline", "environ")]
print(*sys.argv[1:], os.environ["DORM_HOME"], os.getsid(0) == os.getpid(), *shown, sep="|")
sys.exit(int(sys.argv[1]))
"""


def started(folder: Path, *words: str, env: Mapping[str, str]) -> tuple[forked.Program, Path]:
    (folder / "script.py").write_text(SCRIPT)
    with (folder / "out").open("wb") as out:
        return forked.program((str(folder / "script.py"), *words), env, out, out), folder / "out"


def test_a_program_has_its_own_words_environment_session_and_exit_code(tmp_path: Path) -> None:
    program, out = started(tmp_path, "7", env={"PATH": os.environ["PATH"], "DORM_HOME": str(tmp_path)})
    assert program.wait(60.0) == 7
    word, home, session, command, variables = out.read_text().rstrip("\n").split("|")
    assert (word, home, session) == ("7", str(tmp_path), "True")
    assert command.split("\0")[1:] == [str(tmp_path / "script.py"), "7"]
    assert sorted(variables.split("\0")) == [f"DORM_HOME={tmp_path}", f"PATH={os.environ['PATH']}"]


def test_a_program_can_be_waited_for_and_killed(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    with (tmp_path / "out").open("wb") as out:
        program = forked.program((str(tmp_path / "sleeps.py"),), os.environ, out, out)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    assert program.poll() is None
    program.kill()
    assert program.wait(60.0) == -9
    program.kill()  # It is gone, and its number may be another's.
