"""What one app does to its node is nothing to others: work whose length apps decide takes no thread from the node's own and
none from other parties' work, and an action that fails as none should ends no other."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Key
from agents.runtime.long_work import LongWork, Remains
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.run_dirs import RunDirs
from events.kinds import ContainerStarted
from tests.agents.one_node import NODE, Node, holds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec, Seen

_MANY = 64
"""More than a loop has threads."""


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that long work waits for, set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_one_party_delays_neither_another_nor_the_node(never: threading.Event) -> None:
    work = LongWork("test")
    begun = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def endless() -> None:
        loop.call_soon_threadsafe(begun.release)
        never.wait()

    waiting = [asyncio.create_task(work.run("mallory", endless)) for _ in range(_MANY)]
    for _ in range(2):
        await begun.acquire()
    assert await work.run("alice", lambda: 1) == 1
    assert await asyncio.to_thread(lambda: 2) == 2
    assert begun.locked()  # A third of the same party's has not begun,
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    more = asyncio.create_task(work.run("mallory", lambda: 3))
    assert await work.run("alice", lambda: 4) == 4
    assert not more.done()  # and who gives up waiting frees no turn.
    never.set()
    assert await more == 3


async def test_errors_are_raised_to_the_caller() -> None:
    def failing() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await LongWork("test").run("alice", failing)


async def test_the_lease_does_not_depend_on_removing_files(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.runtime.run_dirs.delete", lambda folder: never.wait())
    runtime = ProcessRuntime("node", tmp_path / "node", trust_apps=True)
    await runtime.open()
    try:
        dirs = RunDirs(tmp_path / "node")
        keys = [Key("app", 1, slot) for slot in range(_MANY)]
        for key in keys:
            dirs.make(key)
        await asyncio.gather(*(runtime.remove(key) for key in keys))
        assert dirs.container_keys() == []
        await runtime.extend_lease(60.0)
        assert await runtime.lease_left() is not None
    finally:
        await runtime.close()


async def test_a_failure_of_one_app_ends_no_other(tmp_path: Path) -> None:
    class Broken(ProcessRuntime):
        tries = 0

        async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
            if spec.key.app == "app-1" and self.tries < 2:
                self.tries += 1
                raise RecursionError("nested too deeply")
            return await super().ensure(spec, files)

    node = Node(tmp_path)
    runtime = Broken(NODE, tmp_path / "containers")
    node.make_runtime = lambda: runtime
    try:
        async with node.agent():
            await node.release()
            await holds(lambda: runtime.tries > 0)
            await node.release(app="app-2")
            await node.said(
                lambda facts: {one.app for one in facts if isinstance(one, ContainerStarted)} == {"app-1", "app-2"}
            )
            assert runtime.tries == 2
    finally:
        await node.clean()


def test_leftovers_are_removed_one_at_a_time(tmp_path: Path) -> None:
    removed: list[str] = []
    ended = threading.Event()

    def delete(folder: Path) -> None:
        removed.append(folder.name)
        if folder.name == "b":
            raise PermissionError
        if folder.name == "c":
            raise ValueError
        if folder.name == "d":
            ended.set()

    remains = Remains(delete)
    for name in "abcd":
        remains.put(tmp_path / name)
    assert ended.wait(30)
    assert removed == ["a", "b", "c", "d"]


async def test_work_that_cannot_start_a_thread_releases_its_turn_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work, removed = LongWork("test", of_one=1), threading.Semaphore(0)
    remains = Remains(lambda folder: removed.release())
    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread"):
                await work.run("alice", lambda: 1)
        remains.put(tmp_path / "a")
    async with asyncio.timeout(60):
        assert await work.run("alice", lambda: 2) == 2
    remains.put(tmp_path / "b")
    for _ in range(2):
        assert removed.acquire(timeout=30)
