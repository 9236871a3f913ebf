"""An agent's reports from progress files of several containers."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from agents.config import NodeConfig
from agents.desired import Desired
from agents.machine_identity import Identity
from agents.node_status import Usage
from agents.outbox import Outbox, ProgressFeed
from agents.outputs.folders import CheckpointFolder
from agents.progress import ProgressFile, Watermarks
from agents.reporter import MOST_READERS, Reporter, Watched
from agents.runtime.interface import PROGRESS_FILE, Key, Seen
from events.codec import decode
from events.kinds import AppCheckpointed
from events.log.memory import MemoryLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.ledger import Ledger


class _Folders:
    """Where containers' files are; a reporter asks its runtime for nothing else here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run_dir(self, key: Key) -> Path:
        return self.root / f"{key.app}-{key.generation}-{key.slot}"


class Node:
    def __init__(self, root: Path) -> None:
        self.log = MemoryLog(lambda: 0)
        self.folders = _Folders(root)
        config = NodeConfig(
            name="n1", address="here", capacity={"cpu": 1000}, checkpoints=root, progress_interval_s=0.0
        )
        self.outbox = Outbox(self.log, "lab", "n1")
        self.feed = ProgressFeed(self.log.progress, "lab", "n1")
        self.folder = CheckpointFolder(root)
        self.folder.open()
        self.reporter = Reporter(
            config,
            Desired("n1"),
            cast("Any", self.folders),
            cast("Ledger", None),
            self.outbox,
            lambda: 0,
            Identity(root),
            self.shared,
            self.feed,
            Usage(),
        )

    async def shared(self) -> bool:
        return self.folder.shared()

    def write(self, app: str, text: str) -> Key:
        key = Key(app, 1, 0)
        folder = self.folders.run_dir(key)
        folder.mkdir(exist_ok=True)
        with (folder / PROGRESS_FILE).open("a") as file:
            file.write(text)
        return key

    async def told(self) -> list[tuple[str, int]]:
        await self.outbox.flush()
        events = [decode(record) for record in self.log.records]
        return [(event.app, event.step) for event in events if isinstance(event, AppCheckpointed)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    task = asyncio.create_task(made.outbox.run())
    yield made
    task.cancel()


async def test_a_file_that_can_not_be_read_keeps_no_neighbor_waiting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are readers, and each of them slower than an agent waits."""
    monkeypatch.setattr("agents.reporter._READ_S", 0.05)
    release = threading.Event()
    read = ProgressFile.read

    def slow(self: ProgressFile, now_s: float, *, final: bool = False) -> Any:
        if self._key.app.startswith("slow"):
            release.wait(60)
        return read(self, now_s, final=final)

    monkeypatch.setattr(ProgressFile, "read", slow)
    try:
        keys = [node.write(f"slow{number}", '{"checkpoint": 1}\n') for number in range(MOST_READERS)]
        stuck = [asyncio.create_task(node.reporter.progress(key, final=True)) for key in keys]
        neighbor = node.write("neighbor", '{"checkpoint": 7}\n')
        while ("neighbor", 7) not in await node.told():
            await node.reporter.progress(neighbor, final=False)
        await asyncio.gather(*stuck)
    finally:
        release.set()
    for key in keys:
        await node.reporter.progress(key, final=True)
    assert sorted(await node.told()) == [("neighbor", 7), *((key.app, 1) for key in keys)], "and nothing is lost"


async def test_20000_checkpoints_become_few_records(node: Node) -> None:
    key = node.write("app", "".join(f'{{"checkpoint": {number}}}\n' for number in range(20_000)))
    for _ in range(5):
        await node.reporter.progress(key, final=False)
    await node.reporter.progress(key, final=True)
    told = await node.told()
    assert told[-1] == ("app", 19_999)
    assert len(told) <= 3


def test_a_container_is_watched_closely_while_it_starts_and_changes(tmp_path: Path) -> None:
    watched = Watched(ProgressFile(Key("app", 1, 0), tmp_path / "progress", 1.0), Watermarks())
    watched.note(1, now=100.0)
    assert watched.hurries(100.0)
    watched.note(1, now=129.0)
    assert watched.hurries(129.9)
    assert not watched.hurries(130.0)
    watched.note(2, now=500.0)
    assert watched.hurries(529.9)
    assert not watched.hurries(530.0)


async def test_progress_is_read_only_while_a_container_runs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    seen = asyncio.Event()

    async def progress(key: Key, *, final: bool) -> None:
        nonlocal looks
        looks += 1
        if looks % 3 == 0:
            seen.set()

    monkeypatch.setattr("agents.reporter._PROGRESS_POLL_S", 0.0)
    monkeypatch.setattr(node.reporter, "progress", progress)
    watching = asyncio.create_task(node.reporter.watch_progress())
    try:
        for _ in range(2):
            before = looks
            for _ in range(100):
                await asyncio.sleep(0)
            assert looks == before
            node.reporter.look([Seen(key=Key("app", 1, 0), state="running", spec_hash="")])
            seen.clear()
            await seen.wait()
            node.reporter.look([Seen(key=Key("app", 1, 0), state="exited", spec_hash="")])
            await asyncio.sleep(0)  # A look that had begun ends.
            await asyncio.sleep(0)
    finally:
        watching.cancel()


async def test_a_new_container_does_not_wait_for_the_next_look_at_old_ones(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Key] = []
    seen = asyncio.Event()
    reporter = node.reporter

    async def progress(key: Key, *, final: bool) -> None:
        looked.append(key)
        watched = Watched(ProgressFile(key, tmp_file, 1.0), Watermarks())
        watched.note(reporter._membership(key), asyncio.get_running_loop().time())
        reporter._progress[key] = watched
        seen.set()

    tmp_file = reporter._runtime.run_dir(Key("old", 1, 0)) / PROGRESS_FILE
    monkeypatch.setattr(reporter, "_pause_s", lambda: 1e6)
    monkeypatch.setattr(reporter, "progress", progress)
    memberships = {"old": 0, "new": 0}
    monkeypatch.setattr(reporter, "_membership", lambda key: memberships[key.app])
    running = [Seen(key=Key(app, 1, 0), state="running", spec_hash="") for app in ("old", "new")]
    watching = asyncio.create_task(reporter.watch_progress())
    try:
        async with asyncio.timeout(60):
            for listed, wanted in ((running[:1], ["old"]), (running, ["old", "new"])):
                looked.clear()
                while {key.app for key in looked} != set(wanted):
                    reporter.look(listed)
                    await seen.wait()
                    seen.clear()
            looked.clear()
            memberships["old"] = 1  # It is announced, and what the container says of it ends a live resize.
            reporter.look(running)
            await seen.wait()
        assert looked
    finally:
        watching.cancel()
