"""Files written whole: their content, mode and name, and what is synced to the disk."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from dorm.master.sealing import open_key
from dorm.security.private_files import write_private
from dorm.webhooks.webhook_keys import open_keys
from events.durable import put_in_place, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced so far, in order: files and folders."""
    calls: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return calls


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_private(path, b"secret"),
        lambda path: open_keys(path, "lab"),
        open_key,
        lambda path: write_whole(path, b"content"),
    ],
    ids=["private", "webhooks", "masters", "any"],
)
def test_a_key_survives_a_loss_of_power(write: Callable[[Path], object], tmp_path: Path, synced: list[str]) -> None:
    """The folder is synced after the file: otherwise the name may never reach the disk."""
    write(tmp_path / "key")
    assert (synced, os.listdir(tmp_path)) == (["file", "folder"], ["key"])


def test_a_file_that_can_be_made_again_is_not_synced(tmp_path: Path, synced: list[str]) -> None:
    assert write_whole(tmp_path / "cache", b"content", sync=False)
    assert (synced, (tmp_path / "cache").read_bytes()) == ([], b"content")


def test_a_mode_holds_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "open", b"", mode=0o644)
        write_whole(tmp_path / "usual", b"")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("open", "usual")] == [0o644, 0o600]


def test_an_existing_file_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    assert not write_whole(path, b"second", replace=False)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"first", ["file"])
    assert write_whole(path, b"second")
    assert path.read_bytes() == b"second"


def test_a_failed_write_leaves_the_earlier_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(path, b"second")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"first", ["file"])


def test_a_file_system_without_links_is_renamed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    assert write_whole(tmp_path / "file", b"first", replace=False)
    assert not write_whole(tmp_path / "file", b"second", replace=False)
    (tmp_path / "new").write_bytes(b"third")
    with pytest.raises(FileExistsError):
        put_in_place(tmp_path / "new", tmp_path / "file", replace=False)
    assert (tmp_path / "file").read_bytes() == b"first"
