"""Machines that lack what a plain process needs: bytes, inodes, a writable folder, processes.  It is the node's failure, and
the log says what the system says."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from agents.fitness import Found, Room
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from tests.agents.one_node import NODE, Node
from tests.lab.machines.dockerd import why_not
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if reason := why_not():
        unavailable(f"no file system can be mounted: {reason}")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tmpfs", str(path)], check=True)
    yield path
    while path.is_mount():
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill_bytes(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                return


def fill_inodes(disk: Path) -> None:
    for number in range(1000):
        try:
            (disk / f"small-{number}").touch()
        except OSError:
            return


def make_read_only(disk: Path) -> None:
    """Files of it that are open for writing keep a mount writable, so another one lies over it."""
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)


def see_nothing(folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
    return Found({}, Room(0, 0))


@contextlib.asynccontextmanager
async def lacking(disk: Path, node: Node, lacks: Callable[[Path], None]) -> AsyncIterator[None]:
    """The node's agent has run a container, and then its disk lacks something.  The whole of the agent's own folder is on
    it, so not even a note can be written; the shared folder is elsewhere."""
    (disk.parent / "shared").mkdir()
    (disk / "checkpoints").symlink_to(disk.parent / "shared")
    async with node.agent():
        await node.release("exit 0")
        first = await node.until(k.ContainerExited)
        assert isinstance(first, k.ContainerExited)
        assert first.exit_code == 0
        lacks(disk)
        yield


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        (fill_bytes, os.strerror(errno.ENOSPC)),
        (fill_inodes, os.strerror(errno.ENOSPC)),
        (make_read_only, os.strerror(errno.EROFS)),
    ],
)
async def test_a_disk_that_takes_no_container(disk: Path, lacks: Callable[[Path], None], said: str) -> None:
    """A look at the disk may come too late, or find nothing."""
    node = Node(disk)
    node.look_at = see_nothing
    async with lacking(disk, node, lacks):
        await node.release("exit 0", app="app-2", deadlines={"start": "1s"})
        ended = await node.until(k.ContainerExited, 2)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.app, ended.reason, ended.exit_code) == ("app-2", "start", None)
        assert ended.message.startswith("its node could not create it for ")
        assert said in ended.message


@pytest.mark.parametrize("lacks", [fill_bytes, fill_inodes, make_read_only])
async def test_a_look_at_the_disk_ends_the_tries(disk: Path, lacks: Callable[[Path], None]) -> None:
    """What is tried in vain is given back as soon as the node is known to be unfit: that is no failure of the app's."""
    node = Node(disk)
    async with lacking(disk, node, lacks):
        await node.release("exit 0", app="app-2")
        ended = await node.until(k.ContainerExited, 2)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.app, ended.reason, ended.exit_code) == ("app-2", "lost", None)
        assert ended.message.startswith(f"node {NODE} takes nothing new: its data folder ")


async def test_a_machine_without_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)

    def supervise(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async with node.agent():
        monkeypatch.setattr("agents.runtime.process.runtime.subprocess.run", supervise)
        await node.release("exit 0", deadlines={"start": "1s"})
        ended = await node.until(k.ContainerExited)
        monkeypatch.undo()
    assert isinstance(ended, k.ContainerExited)
    assert (ended.reason, ended.exit_code) == ("start", None)
    assert ended.message.startswith("its node could not start it for ")
    assert os.strerror(errno.EAGAIN) in ended.message
    await node.clean()


async def test_a_program_for_which_the_machine_has_no_process_left(tmp_path: Path) -> None:
    """The supervisor has one, the program does not: that is no wrong command."""
    node = Node(tmp_path)

    class Full(ProcessRuntime):
        def _supervise(self, key: object) -> None:
            folder = self._dirs.container_dir(key)  # type: ignore[arg-type]
            (folder / "refused").write_text(f"sh: {os.strerror(errno.EAGAIN)}")

    node.make_runtime = lambda: Full(NODE, tmp_path / "containers")
    async with node.agent():
        await node.release("exit 0", deadlines={"start": "1s"})
        ended = await node.until(k.ContainerExited)
    assert isinstance(ended, k.ContainerExited)
    assert (ended.reason, os.strerror(errno.EAGAIN) in ended.message) == ("start", True)
    await node.clean()
