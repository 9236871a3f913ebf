"""What agents announce decides where apps go: a real master, agents, processes, files and a health program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents.fitness import Found, FoundFolder, Room, look_at_machine
from agents.runtime import secrets
from events.kinds import MOST_SECRETS, ContainerExited, ContainerStarted, NodeJoined
from tests.agents.one_node import Node
from tests.agents.test_checkpoint_folder import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from dorm.core.state import State


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    await found.stop()


def document(name: str, command: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["sh", "-c", command], "demand": {"cpu": 1}, "n_max": 1, "grace": "1s", **fields}


def put(folder: Path, name: str, content: str = "hush") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


async def test_an_app_goes_to_the_node_that_has_its_secret(cluster: Cluster) -> None:
    """As on a node that is new and has not got the folder's content yet: nothing is tried there."""
    (cluster.root / "empty").mkdir()
    put(cluster.root / "full" / "ann", "wandb")
    await cluster.start("a", "shared", secrets=cluster.root / "empty")
    await cluster.start("b", "shared", secrets=cluster.root / "full")
    for name in ("one", "two", "three"):
        await cluster.client.submit(document(name, '[ "$(cat $KEY)" = hush ]', secrets={"KEY": "wandb"}))
    state = await cluster.until(lambda state: len(state.apps) == 3 and all(app.ended for app in state.apps.values()))
    assert [(app.ended, app.failures) for app in state.apps.values()] == [("completed", 0)] * 3
    last = document("last", '[ "$(cat $KEY)" = new ]', secrets={"KEY": "other"})
    await cluster.client.submit(last)
    waiting = await cluster.until(lambda state: any(app.waiting for app in state.apps.values()))
    (app,) = [app for app in waiting.apps.values() if app.name == "last"]
    assert app.waiting is not None
    assert "no node has the secret other of user ann: put it at ann/other" in app.waiting.text
    put(cluster.root / "empty" / "ann", "other", "new")
    done = await cluster.until(lambda state: state.apps[app.id].ended != "")
    assert (done.apps[app.id].ended, done.apps[app.id].failures) == ("completed", 0)


async def test_a_node_whose_health_program_fails_takes_nothing_new_and_keeps_what_runs(cluster: Cluster) -> None:
    broken, program = cluster.root / "broken", cluster.root / "healthy"
    program.write_text(f"#!/bin/sh\nif [ -e {broken} ]; then cat {broken}; exit 1; fi\n")
    program.chmod(0o755)
    await cluster.start("a", "shared", health_program=program, health_every_s=0.2)
    await cluster.client.submit(document("first", "sleep 600"))
    await cluster.until(lambda state: any(app.settled for app in state.apps.values()))
    broken.write_text("GPU 3 is gone\n")
    await cluster.until(lambda state: state.nodes["a"].shown == "unfit")
    await cluster.client.submit(document("second", "true"))

    def waits(state: State) -> bool:
        return any(app.waiting is not None and app.name == "second" for app in state.apps.values())

    state = await cluster.until(waits)
    first, second = sorted(state.apps.values(), key=lambda app: app.seq)
    assert first.settled
    assert second.waiting is not None
    assert "a takes nothing new: its health program says: GPU 3 is gone" in second.waiting.text
    broken.unlink()
    state = await cluster.until(lambda state: state.apps[second.id].ended != "")
    assert state.apps[second.id].ended == "completed"
    assert state.apps[first.id].generation == 1, "it was left alone"


async def test_a_node_that_is_broken_when_it_starts_never_gets_a_container(cluster: Cluster) -> None:
    program = cluster.root / "healthy"
    program.write_text("#!/bin/sh\necho no driver; exit 1\n")
    program.chmod(0o755)
    await cluster.start("a", "shared", health_program=program)
    await cluster.start("b", "shared")
    for name in ("one", "two"):
        await cluster.client.submit(document(name, "true"))
    state = await cluster.until(lambda state: len(state.apps) == 2 and all(app.ended for app in state.apps.values()))
    assert [(app.ended, app.failures) for app in state.apps.values()] == [("completed", 0)] * 2
    assert state.nodes["a"].unfit[0].text == "its health program says: no driver"


async def test_what_was_released_to_a_node_that_became_unfit_goes_back_at_once(tmp_path: Path) -> None:
    """The decision and the full disk crossed each other: nothing is tried in vain, and the app is not blamed."""
    full = FoundFolder(Room(0, 2**40), Room(10**6, 10**6), writable=True)

    def look(folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
        return Found({"data": full}, Room(0, 0))

    node = Node(tmp_path)
    node.look_at = look
    try:
        async with node.agent():
            joined = await node.until(NodeJoined)
            assert isinstance(joined, NodeJoined)
            assert joined.offers is not None
            assert [one.code for one in joined.offers.unfit] == ["data_bytes"]
            await node.release()
            exited = await node.until(ContainerExited)
            assert isinstance(exited, ContainerExited)
            assert exited.reason == "lost"
            assert "takes nothing new: its data folder" in exited.message
            assert not any(isinstance(fact, ContainerStarted) for fact in node.facts())
        node.look_at = look_at_machine
        async with node.agent():
            await node.release(app="app-2")
            await node.until(ContainerStarted)
    finally:
        await node.clean()


def test_only_what_a_container_could_get_is_a_secret(tmp_path: Path) -> None:
    put(tmp_path / "ann", "wandb")
    put(tmp_path / "ann", ".hidden")
    put(tmp_path / "ann", "two words")
    put(tmp_path / "ann", "large", "x" * (secrets.LARGEST + 1))
    (tmp_path / "ann" / "link").symlink_to("wandb")
    (tmp_path / "ann" / "folder").mkdir()
    put(tmp_path / "bob", "b")
    put(tmp_path / "no user", "c")
    put(tmp_path, "file")
    assert secrets.found(tmp_path) == {"ann": ["wandb"], "bob": ["b"]}
    assert secrets.found(tmp_path / "missing") == {}
    for number in range(MOST_SECRETS):
        put(tmp_path / "carl", f"s{number}", "")
    assert secrets.found(tmp_path) is None, "too many to announce: any may be there"
