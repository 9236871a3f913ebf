"""The marker in the shared folder of checkpoints, and agents whose mount is missing: real files, processes and agents."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from agents.agent import Agent
from agents.config import NodeConfig
from agents.outputs import folders as checkpoint_folder
from agents.outputs.folders import MARKER, CheckpointFolder, Looks, NotShared
from agents.runtime.interface import Unavailable
from agents.runtime.process.runtime import ProcessRuntime
from dorm.client.client import Client
from dorm.master.master import Master
from events.codec import decode
from events.kinds import NO_FOLDER, AppProgressed, ContainerExited, ContainerStarted
from events.log.memory import MemoryBus, MemoryLog
from tests.agents.one_node import Node
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from dorm.core.state import App, State

CLUSTER = "mounts"
PATIENCE_S = 120.0
WORK = (
    'f=$DORM_CHECKPOINT_DIR/step; n=$(cat $f 2>/dev/null || echo 0); echo "{\\"step\\": $n}" >> "$DORM_PROGRESS"; '
    'trap "exit 0" TERM; while :; do n=$((n+1)); echo $n > $f; echo "{\\"checkpoint\\": $n}" >> "$DORM_PROGRESS"; '
    "sleep 0.2; done"
)
"""Continues to count from its folder of checkpoints, and first prints where it starts."""


class TestMarker:
    def test_all_who_open_it_at_once_find_the_same_id(self, tmp_path: Path) -> None:
        folders = [CheckpointFolder(tmp_path / "shared") for _ in range(32)]
        with ThreadPoolExecutor(16) as pool:
            found = set(pool.map(CheckpointFolder.open, folders))
        assert len(found) == 1
        assert [path.name for path in (tmp_path / "shared").iterdir()] == [MARKER], "nothing is left beside it"
        assert CheckpointFolder(tmp_path / "other").open() not in found

    def test_a_folder_without_its_mount_is_noticed(self, tmp_path: Path) -> None:
        shared, bare, link = tmp_path / "shared", tmp_path / "bare", tmp_path / "link"
        shared.mkdir()
        bare.mkdir()
        link.symlink_to(shared)
        folder = CheckpointFolder(link)
        folder.open()
        assert folder.of_app("app-1", resume=False).is_dir()
        link.unlink()
        link.symlink_to(bare)
        assert (folder.look(), folder.shared(), folder.is_the_same()) == (NO_FOLDER, False, False)
        for resume in (False, True):
            with raises(NotShared, "checkpoints.replaced"):
                folder.of_app("app-1", resume=resume)
        assert list(bare.iterdir()) == []

    def test_an_app_with_a_checkpoint_does_not_start_without_its_folder(self, tmp_path: Path) -> None:
        folder = CheckpointFolder(tmp_path)
        folder.open()
        with raises(NotShared, "checkpoints.app_missing"):
            folder.of_app("app-1", resume=True)
        assert not (tmp_path / "app-1").exists()

    def test_an_app_does_not_start_with_another_folder_than_the_clusters(self, tmp_path: Path) -> None:
        folder = CheckpointFolder(tmp_path)
        folder.open()
        with raises(NotShared, "checkpoints.differs", "b" * 32):
            folder.of_app("app-1", resume=False, cluster="b" * 32)
        assert not (tmp_path / "app-1").exists()
        for known in (folder.id, ""):
            assert folder.of_app("app-1", resume=False, cluster=known).is_dir()

    @pytest.mark.parametrize("content", ["", "0123", "x" * 32, "a" * 33])
    def test_a_damaged_marker_is_unknown_and_not_another_folder(self, tmp_path: Path, content: str) -> None:
        folder = CheckpointFolder(tmp_path)
        folder.open()
        (tmp_path / MARKER).write_text(content)
        with pytest.raises(OSError, match="write the id into it"):
            CheckpointFolder(tmp_path).open()
        assert (folder.shared(), folder.is_the_same()) == (False, True)


class Stuck:
    """A look at a mount whose server does not answer: it holds its thread until `back` is set."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.begun = 0

    def __call__(self) -> bool:
        self.begun += 1
        self.back.wait()
        return True


async def test_a_hanging_mount_blocks_a_single_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_folder, "_PATIENCE_S", 0.2)
    looks, stuck = Looks(CheckpointFolder(tmp_path / "shared"), "n1"), Stuck()
    try:
        for _ in range(2):
            outcomes = await asyncio.gather(*(looks(stuck) for _ in range(50)), return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {Unavailable}
            assert f"{tmp_path / 'shared'} does not answer" in str(outcomes[0])
            assert stuck.begun == 1
        assert await asyncio.to_thread(str, 1) == "1", "threads are left for others, such as the lease"
    finally:
        stuck.back.set()
    monkeypatch.setattr(checkpoint_folder, "_PATIENCE_S", PATIENCE_S)
    assert await looks(stuck)
    with pytest.raises(FileNotFoundError):
        await looks((tmp_path / "gone").stat)
    assert await looks(stuck), "an error of one look is not the next one's"


class Cluster:
    """A master and process agents in this process, each with a separate mount: a link."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log, self.bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
        self.client = Client(self.log, self.bus, CLUSTER, user="ann")
        self.tasks = [
            asyncio.create_task(Master(self.log, self.bus, CLUSTER, name="m", clock=time.time_ns).run()),
        ]
        self.runtimes: list[ProcessRuntime] = []
        (root / "shared").mkdir()
        (root / "bare").mkdir()

    def mount(self, node: str, what: str) -> None:
        link = self.root / f"mount-{node}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.root / what)

    async def start(self, node: str, what: str, **settings: Any) -> Agent:
        self.mount(node, what)
        runtime = ProcessRuntime(node, self.root / node)
        self.runtimes.append(runtime)
        number = len(self.runtimes)
        config = NodeConfig(
            name=node,
            address="127.0.0.1",
            capacity={"cpu": 2000},
            checkpoints=self.root / f"mount-{node}",
            ports=(21000 + 100 * number, 21099 + 100 * number),
            report_interval_s=0.5,
            progress_interval_s=0.0,
            **settings,
        )
        agent = Agent(
            self.log, self.bus, CLUSTER, config, runtime, root=self.root / f"agent-{node}", clock=time.time_ns
        )
        self.tasks.append(asyncio.create_task(agent.run()))
        async with asyncio.timeout(PATIENCE_S):
            await agent.joined.wait()
        return agent

    async def until(self, holds: Callable[[State], bool]) -> State:
        async with asyncio.timeout(PATIENCE_S):
            async for state, _ in self.client.watch():
                if holds(state):
                    return state
        raise AssertionError("a log that is followed does not end")

    async def stop(self) -> None:
        for task in reversed(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for runtime in self.runtimes:
            await runtime.open()
            for seen in await runtime.list():
                await runtime.stop(seen.key, 0.0)
            await runtime.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    await found.stop()


def _runs_on(app: App) -> list[str]:
    return list(app.current.by_node()) if app.settled and app.current is not None else []


def _document() -> dict[str, object]:
    return {
        "name": "counts", "command": ["sh", "-c", WORK], "resume": ["sh", "-c", WORK],
        "demand": {"cpu": 2}, "n_max": 1, "grace": "2s", "retries": {"backoff": "200ms", "longest": "1s"},
    }  # fmt: skip


@pytest.mark.slow
async def test_an_app_that_saved_waits_for_its_folder_instead_of_starting_over(cluster: Cluster) -> None:
    """Its node is drained, and the only other one has no mount: it waits there until that is mounted."""
    await cluster.start("a", "shared")
    await cluster.client.submit(_document())
    await cluster.until(lambda state: any((app.checkpoint or 0) > 3 for app in state.apps.values()))
    await cluster.start("b", "bare")
    state = await cluster.until(lambda state: "b" in state.nodes)
    assert (state.nodes["a"].foreign, state.nodes["b"].foreign) == (False, True)
    await cluster.client.drain("a")
    waiting = await cluster.until(lambda state: all(app.phase == "waiting" for app in state.apps.values()))
    saved = next(iter(waiting.apps.values())).checkpoint or 0
    await asyncio.sleep(1.0)
    assert [path.name for path in (cluster.root / "bare").iterdir()] == [MARKER], "nothing of it was started there"
    cluster.mount("b", "shared")
    moved = await cluster.until(lambda state: any(app.step > saved for app in state.apps.values() if app.settled))
    app = next(iter(moved.apps.values()))
    assert not moved.nodes["b"].foreign
    assert app.current is not None
    assert list(app.current.by_node()) == ["b"]
    events = [decode(record) async for record in cluster.client.records()]
    first = next(one for one in events if isinstance(one, AppProgressed) and one.generation == app.generation)
    assert first.step >= saved > 3


@pytest.mark.slow
@pytest.mark.soak
async def test_a_folder_that_is_unmounted_under_a_running_agent_is_left_alone(cluster: Cluster) -> None:
    await cluster.start("a", "shared")
    await cluster.start("b", "shared")
    await cluster.client.submit(_document())
    first = await cluster.until(lambda state: any((app.checkpoint or 0) > 3 for app in state.apps.values()))
    app = next(iter(first.apps.values()))
    assert app.current is not None
    (here,) = app.current.by_node()
    other = "b" if here == "a" else "a"
    cluster.mount(here, "bare")
    await cluster.until(lambda state: state.nodes[here].foreign)
    moved = await cluster.until(lambda state: any(_runs_on(app) == [other] for app in state.apps.values()))
    believed = next(iter(moved.apps.values())).checkpoint or 0
    again = await cluster.until(lambda state: all(app.history[-1].resumed_at for app in state.apps.values()))
    record = next(iter(again.apps.values())).history[-1]
    assert record.resumed_step >= (record.checkpoint or 0) > 3
    assert believed > 3


async def test_an_agent_that_returns_without_its_mount_does_not_start_earlier_releases(
    tmp_path: Path,
) -> None:
    """It marks the empty folder, so what it sees there is the folder that it announces, and not the one of the release."""
    node = Node(tmp_path)
    async with node.agent():
        pass
    (tmp_path / "checkpoints" / MARKER).unlink()
    await node.release(checkpoints=node.facts()[0].checkpoints)  # type: ignore[attr-defined]
    try:
        async with node.agent():
            exited = await node.until(ContainerExited)
            assert isinstance(exited, ContainerExited)
            assert exited.reason == "checkpoints"
            assert not any(isinstance(fact, ContainerStarted) for fact in node.facts())
    finally:
        await node.clean()
