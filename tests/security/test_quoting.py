"""Names of files and subjects in the configuration of a NATS server."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from dorm.local.nats_server import EmbeddedServer, find_binary
from dorm.security.quoting import quoted, quoted_list

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (b"j\xc3\xbcrgen", b"a b'c", b'q"uo\\te', b"$HOME%h{x};#&", b"new\nline\ttab", b"\x01\x7f", b"\xff\xfe")


def test_each_byte_that_is_not_plain_is_written_as_its_number() -> None:
    assert quoted("plain $text") == '"plain $text"'
    assert quoted('ü"\\\n') == r'"\xc3\xbc\x22\x5c\x0a"'
    assert quoted_list(["a", "b"]) == '["a", "b"]'


@pytest.mark.parametrize("name", NAMES)
def test_the_server_reads_the_path_as_it_is(tmp_path: Path, name: bytes) -> None:
    """It creates the folder of its store under this very name, and checks its configuration."""
    folder = tmp_path / os.fsdecode(name)
    server = EmbeddedServer(folder, port=1)
    folder.mkdir()
    (folder / "nats.conf").write_text(
        server._configuration() + f"pid_file: {quoted(folder / 'pid')}\nlog_file: {quoted(folder / 'log')}\n"
    )
    checked = subprocess.run([find_binary(), "-t", "-c", folder / "nats.conf"], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    # A port that it can't have ends it right after it has opened its files.
    subprocess.run(
        [find_binary(), "-c", folder / "nats.conf", "-p", "-2"], capture_output=True, timeout=60, check=False
    )
    assert (folder / "log").is_file()
