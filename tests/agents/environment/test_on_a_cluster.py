"""Data, variables and packages on a real cluster, in both runtimes: offered, placed, built once, and clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agents.config import OfferedVolume
from dorm.client.errors import Refused
from dorm.client.sessions import Session, running_place
from dorm.core.query.views import app_row, describe, node_rows
from dorm.local.cluster import LocalCluster
from events.codec import decode
from events.kinds import ContainerStarted
from events.sessions import Output
from tests.e2e.story import check_log, until
from tests.e2e.test_one_machine import options
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import App
    from dorm.local.cluster import LocalOptions

pytestmark = [pytest.mark.nats, pytest.mark.slow]
SCRIPT = (
    'cat "$DORM_VOLUME_DATA/file" "$VIRTUAL_ENV/made" > "$DORM_CHECKPOINT_DIR/said.$DORM_RANK"; '
    'if echo x > "$DORM_VOLUME_DATA/file"; then echo written >> "$DORM_CHECKPOINT_DIR/said.$DORM_RANK"; fi; '
    'until test -e "$DORM_CHECKPOINT_DIR/go"; do sleep 0.1; done'
)


def spec(**fields: Any) -> dict[str, Any]:
    return {
        "name": "uses",
        "image": "dorm/samples:1",
        "command": ["sh", "-c", SCRIPT],
        "demand": {"cpu": "500m", "memory": "256MiB"},
        "n_min": 2,
        "n_max": 2,
        "retries": {"limit": 0},
        "volumes": {"data": "/data"},
        "setup": ['echo "one of us" >> "$VIRTUAL_ENV/made"'],
        **fields,
    }


def offering(made: LocalOptions, folder: Path) -> LocalOptions:
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("read me\n")
    for one in (folder, *folder.parents[:2]):
        one.chmod(0o755)  # Containers have other users.
    return msgspec.structs.replace(made, volumes={"data": OfferedVolume(folder / "data")})


async def play(cluster: LocalCluster, folder: Path) -> None:
    client = cluster.client
    with raises(Refused, "spec.volumes.not_offered", "they offer data"):
        await client.submit(spec(volumes={"other": "/data"}))
    with raises(Refused, "spec.volumes.read_only", "data"):
        await client.submit(spec(volumes=[{"name": "data", "read_only": False}]))
    app = await client.submit(spec())
    state = await until(client, lambda s: s.apps[app.id].phase == "starting" and _released(s.apps[app.id]), "it builds")
    assert app_row(state.apps[app.id], state.time).note.startswith("builds its environment")
    await until(client, lambda s: s.apps[app.id].phase == "running", "its containers start", timeout=45.0)
    state = await client.state()
    words = ("sh", "-c", 'cat "$DORM_VOLUME_DATA/file" "$VIRTUAL_ENV/made"')
    session = Session(client, running_place(state.apps[app.id], 0), "exec", words)
    answers = [answer async for answer in session.answers()]
    assert b"".join(one.data for one in answers if isinstance(one, Output)) == b"read me\none of us\n"
    (folder / "checkpoints" / app.id / "go").touch()
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends")
    ended = state.apps[app.id]
    assert ended.ended == "completed", ended.end_reason
    checkpoints = folder / "checkpoints" / app.id
    said = [(checkpoints / f"said.{rank}").read_text().splitlines() for rank in (0, 1)]
    assert said == [["read me", "one of us"]] * 2, "the environment is built once, and nobody writes to the volume"
    assert (folder / "data" / "file").read_text() == "read me\n"
    started = [event async for event in _started(cluster, app.id)]
    assert len(started) == 2
    assert all(event.environment_s > 0 for event in started)
    document = describe(ended, state.time, state)
    assert "built in" in document["environment"]
    assert document["volumes"] == {"data": "read-only"}
    assert node_rows(state)[0].volumes == {"data": "read-only"}
    await check_log(client)


def _released(app: App) -> bool:
    return app.current is not None and app.current.released_at > 0


async def _started(cluster: LocalCluster, app: str) -> Any:
    async for record in cluster.client.records():
        event = decode(record)
        if isinstance(event, ContainerStarted) and event.app == app:
            yield event


async def test_in_processes(tmp_path: Path) -> None:
    async with LocalCluster(offering(options(tmp_path, "process", agents=1), tmp_path)) as cluster:
        try:
            await play(cluster, tmp_path)
            failing = await cluster.client.submit(spec(name="fails", setup=["echo no such thing >&2; exit 3"]))
            state = await until(cluster.client, lambda s: bool(s.apps[failing.id].ended), "it fails")
            assert "`echo no such thing >&2; exit 3` ended with exit code 3" in state.apps[failing.id].end_reason
            with raises(Refused, "spec.python.not_offered", "3.99"):
                await cluster.client.submit(spec(name="new", python="3.99"))
        finally:
            await cluster.stop_now()


@pytest.mark.docker
@pytest.mark.soak
async def test_in_docker(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    cluster = LocalCluster(offering(options(tmp_path, "docker", docker_host, agents=1), tmp_path))
    try:
        async with cluster:
            await play(cluster, tmp_path)
    finally:
        await cluster.remove_containers()
