"""Removing what apps left: no mount is entered, no link followed, and what stays is named."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agents.outputs import folders
from agents.runtime import removing
from agents.runtime.removing import Removal, delete, remove

if TYPE_CHECKING:
    from collections.abc import Callable

_APART = ["unshare", "--mount", "--propagation", "private"]
_CAN_MOUNT = subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode == 0
mounts = pytest.mark.skipif(not _CAN_MOUNT, reason="mounting needs root")


def removed_among_mounts(folder: Path, *script: str) -> Any:
    """Run a shell script and then the removal in a mount namespace of its own; return what stays."""
    python = (
        "import sys, json; from pathlib import Path; from agents.runtime.removing import remove;"
        "print(json.dumps(remove(Path(sys.argv[1]))))"
    )
    lines = [*script, f'exec {sys.executable} -c "{python}" "$0"']
    done = subprocess.run(
        [*_APART, "sh", "-ec", "\n".join(lines), str(folder)],
        capture_output=True, check=True, cwd=Path(__file__).parents[3], text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Data that is not the app's."""
    made = tmp_path / "precious"
    (made / "models").mkdir(parents=True)
    for number in range(3):
        (made / "models" / str(number)).write_text("data")
    return made


def whole(precious: Path) -> bool:
    return sorted(one.name for one in (precious / "models").iterdir()) == ["0", "1", "2"]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What an app left."""
    made = tmp_path / "left"
    (made / "home" / "data").mkdir(parents=True)
    (made / "home" / "file").write_text("of the app")
    (made / "other" / "empty").mkdir(parents=True)
    return made


@mounts
@pytest.mark.parametrize("how", ["mount --bind {precious} $0/home/data", "mount -t tmpfs none $0/home/data"])
def test_no_mount_is_entered(left: Path, precious: Path, how: str) -> None:
    """A folder of the same disk has the same device as the app's own."""
    said = removed_among_mounts(
        left, how.format(precious=precious), "test -e $0/home/data/models || mkdir $0/home/data/models"
    )
    assert said == [[["home/data", "another file system is mounted there"]], 1]
    assert whole(precious)
    assert sorted(path.relative_to(left).as_posix() for path in left.rglob("*")) == ["home", "home/data"]


@mounts
def test_the_folder_itself_may_be_a_mount(left: Path, precious: Path) -> None:
    assert removed_among_mounts(left, f"mount --bind {precious} $0")[0][0][0] == ""
    assert whole(precious)


@mounts
def test_a_mounted_file_stays(left: Path, precious: Path) -> None:
    said = removed_among_mounts(left, f"mount --bind {precious}/models/1 $0/home/file")
    assert [one[0] for one in said[0]] == ["home/file"]
    assert whole(precious)
    assert (precious / "models/1").read_text() == "data"


@mounts
def test_a_mount_at_any_depth_stays_and_is_named_by_its_place(left: Path, precious: Path) -> None:
    deep = "/".join("d" * (removing.MOST_OPEN + 5))
    said = removed_among_mounts(left, f"mkdir -p $0/{deep}", f"mount --bind {precious} $0/{deep}")
    assert said == [[[deep, "another file system is mounted there"]], 1]
    assert whole(precious)


def test_no_link_is_followed(left: Path, precious: Path) -> None:
    (left / "file").symlink_to(precious / "models" / "0")
    (left / "home" / "folder").symlink_to(precious)
    (left / "home" / "away").symlink_to("../..")
    assert remove(left) == Removal()
    assert not left.exists()
    assert whole(precious)
    left.symlink_to(precious)
    assert remove(left) == Removal()
    assert not left.is_symlink()
    assert whole(precious)


def test_any_depth_is_removed(tmp_path: Path) -> None:
    """By far more levels than a process may have open files, or a path may have characters."""
    top = tmp_path / "left"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(here)
        here = below
    os.close(here)
    assert remove(top) == Removal()
    assert not top.exists()


def test_folders_of_many_files_and_any_name_are_removed(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removing, "_BATCH", 10)
    for number in range(95):
        (left / f"file{number}").touch()
    (left / "a b\n'\"$\\").mkdir()
    os.mkdir(os.path.join(os.fsencode(left), b"\xff\xfe"))
    os.mkfifo(left / "pipe")
    (left / "sealed").mkdir()
    (left / "sealed" / "file").touch()
    (left / "sealed").chmod(0)
    assert remove(left) == Removal()
    assert not left.exists()


def test_a_file_or_nothing_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert remove(tmp_path / "file") == Removal()
    assert remove(tmp_path / "file") == Removal()
    assert remove(tmp_path / "no" / "such" / "folder") == Removal()


def test_what_is_exchanged_for_links_meanwhile_leads_nowhere(left: Path, precious: Path) -> None:
    """A process that outlived its container exchanges folders and links to data as fast as it can."""
    over = threading.Event()
    inside = left / "home" / "inside"
    inside.mkdir()

    def exchange() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                os.rename(inside, left / "aside")
            with contextlib.suppress(OSError):
                os.symlink(precious, inside)
            with contextlib.suppress(OSError):
                os.unlink(inside)
            with contextlib.suppress(OSError):
                os.rename(left / "aside", inside)
            with contextlib.suppress(OSError):
                (inside / "models").mkdir(parents=True, exist_ok=True)

    hostile = threading.Thread(target=exchange)
    hostile.start()
    try:
        for _ in range(200):
            remove(left)
            (left / "home").mkdir(parents=True, exist_ok=True)
    finally:
        over.set()
        hostile.join()
    assert whole(precious)
    remove(left)
    assert not left.exists()


def test_what_stays_is_counted_and_logged(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (left / f"file{number}").touch()
    refused(monkeypatch, lambda name: name.startswith("file"))
    with capture_logs() as logs:
        removal = delete(left)
    assert removal.kept == 21
    assert len(removal.left) == removing.MOST_NAMED
    assert all(one.reason == "Operation not permitted" for one in removal.left)
    assert [(one["folder"], one["count"], len(one["left"])) for one in logs] == [(str(left), 21, removing.MOST_NAMED)]


def test_what_stays_of_an_app_is_tried_and_named_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "app-1", tmp_path / folders.APPS / "app-1"):
        folder.mkdir(parents=True)
        (folder / "stays").touch()
        (folder / "goes").touch()
    with monkeypatch.context() as still:
        refused(still, lambda name: name == "stays")
        folders.remove(tmp_path, "app-1")
        assert not (tmp_path / "app-1").exists()
        with capture_logs() as logs:
            folders.remove_remains(tmp_path)
    assert [one["left"] for one in logs] == [{"stays": "Operation not permitted"}] * 2
    folders.remove_remains(tmp_path)
    assert list((tmp_path / folders.APPS).iterdir()) == []


def refused(monkeypatch: pytest.MonkeyPatch, which: Callable[[str], bool]) -> None:
    """Let these files be immutable (chattr(1))."""
    unlink = os.unlink

    def refusing(name: str, **how: Any) -> None:
        if which(os.path.basename(name)):
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, **how)

    monkeypatch.setattr(os, "unlink", refusing)
