"""Archives are opened, from files and pipes, and all else is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from events.archive.blocks import MAGIC
from events.archive.segments import SegmentLog, open_archive
from events.log.records import LogRefused
from tests.errors import raises
from tests.events.archive.test_segment_log import FORTY, WHOLE
from tests.events.log.readable_conformance import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator


async def test_an_archive_is_opened(tmp_path: Path) -> None:
    (tmp_path / "log.dorm").write_bytes(WHOLE)
    log = await open_archive(tmp_path / "log.dorm")
    assert type(log) is SegmentLog
    assert await read_all(log) == FORTY
    assert (await log.damages(), await log.torn()) == ([], "")
    await log.close()


async def test_other_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes").write_text("DORMLOG9")
    before = os.listdir("/proc/self/fd")
    for name, reason in (
        ("notes", "archive.not_an_archive"),
        ("none", "system.enoent"),
        ("pipe", "archive.not_a_file"),
        (".", "archive.not_a_file"),
        ("notes/deeper", "system.enotdir"),
    ):
        with raises(LogRefused, reason):
            await open_archive(tmp_path / name)
    assert os.listdir("/proc/self/fd") == before, "a file was left open"


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may read everything, so this test runs as another user."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


@pytest.fixture
def locked_away() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    secret = home / "secret.dorm"
    secret.write_bytes(MAGIC)
    secret.chmod(0)
    yield secret
    secret.unlink()
    home.rmdir()


async def test_a_file_without_permission_is_refused(locked_away: Path, unprivileged: None) -> None:
    with raises(LogRefused, "system.eacces", "secret.dorm"):
        await open_archive(locked_away)


_READ_STDIN = """
import asyncio, pathlib
from events.archive.segments import open_archive
async def main():
    log = await open_archive(pathlib.Path("-"))
    print([record.seq async for batch in log.read() for record in batch][-1], await log.torn())
asyncio.run(main())
"""


def test_an_archive_is_read_from_a_pipe() -> None:
    program = [sys.executable, "-c", _READ_STDIN]
    done = subprocess.run(program, input=WHOLE, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"40 \n"
    done = subprocess.run(program, input=WHOLE[:-1], capture_output=True, check=True, timeout=60)
    assert done.stdout.startswith(b"40 standard input: it breaks off")
