"""Agents of one process read their files in threads, at the same moment."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agents.desired import Desired
from agents.following import DesiredFile
from events.log.records import Record

if TYPE_CHECKING:
    from pathlib import Path

_READ = """
import sys, threading
from pathlib import Path
from agents.following import DesiredFile
sys.setswitchinterval(1e-6)
together, found = threading.Barrier(8), []
def read():
    file = DesiredFile(Path(sys.argv[1]), "c", "n")
    together.wait()
    found.append(file.load("build"))
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len([one for one in found if one is not None]))
"""


@pytest.mark.slow
def test_the_first_reads_may_be_concurrent(tmp_path: Path) -> None:
    """msgspec reads a type's annotations on first use, and two threads that do so at once crash the process."""
    file = DesiredFile(tmp_path / "desired", "c", "n")
    file.save(Desired("n", 7), Record(7, 1, "dorm.c.event.NodeJoined.n", b"{}", "id"), "build")
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-c", _READ, str(file.path)], capture_output=True, text=True, check=False, timeout=60
        )
        assert (ran.returncode, ran.stdout.strip()) == (0, "8"), ran.stderr[-500:]
