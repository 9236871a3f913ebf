"""Features that meet in one app, as a plain user types them on one cluster of processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from dorm.client.opening import open_client
from events.nats.access import read_credentials
from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import Up, leaving_nothing, up
from tests.e2e.story import until
from tests.webhooks.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import State

pytestmark = [
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]
SLEEPS = "while :; do sleep 0.2; done"
SAVES = 'echo weights > "$DORM_CHECKPOINT_DIR/step-3"; echo \'{"step": 3}\n{"checkpoint": 3}\' >> "$DORM_PROGRESS"'


class Plain:
    """A plain user's terminal."""

    def __init__(self, cluster: Up, credentials: Path, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self._env = {"DORM_CREDENTIALS": str(credentials)}

    async def done(self, *words: str) -> str:
        return await done(self.cluster.home, *words, env=self._env)

    async def ships(self, *words: str) -> str:
        """As `done`, of a command that says on stderr what it has sent."""
        code, out, err = await dorm(self.cluster.home, *words, env=self._env)
        assert code == 0, err
        return out

    async def refused(self, *words: str, code: int = 1) -> str:
        return await refused(self.cluster.home, *words, code=code, env=self._env)

    async def described(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.done("describe", name, "-o", "json"))
        return found

    async def runs(self, name: str, generation: int = 1) -> State:
        def right(state: State) -> bool:
            apps = [app for app in state.apps.values() if app.name == name]
            return any(app.generation == generation and app.phase == "running" for app in apps)

        return await until(self.client, right, f"{name} runs in generation {generation}", timeout=60.0)

    async def says(self, name: str, words: str) -> None:
        """Wait until the containers that it has now have said this."""
        said = ""
        for _ in range(30):
            said = await self.done("logs", name)
            if words in said:
                return
        raise AssertionError(f"{name} never said {words}: {said}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ann(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plain]:
    folder = tmp_path_factory.mktemp("together")
    data = tmp_path_factory.mktemp("offered")
    (data / "file").write_text("read me\n")
    options = ("--trust-apps", "--volume", f"data={data}", "--webhooks-allow", "loopback")
    async with leaving_nothing(folder), up(folder, *options, agents=1, known=True) as cluster:
        credentials = folder / "ann.json"
        await done(cluster.home, "user", "add", "ann", "--to", str(credentials))
        async with await open_client(cluster.url, "local", credentials=read_credentials(credentials)) as client:
            yield Plain(cluster, credentials, client)


def write(folder: Path, name: str, script: str, **fields: Any) -> str:
    spec = {"name": name, "command": ["sh", "-c", script], "demand": {"cpu": "250m"}, "grace": "1s", **fields}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


async def test_an_edit_gives_an_app_a_volume(ann: Plain, tmp_path: Path) -> None:
    script = f'test -z "$DORM_VOLUME_DATA" || cat "$DORM_VOLUME_DATA/file"; echo begun; {SLEEPS}'
    await ann.done("submit", write(tmp_path, "reads", script))
    await ann.runs("reads")
    refusal = await ann.refused("edit", "reads", "--set", "volumes={other: /data}", "--yes")
    assert "spec.volumes.not_offered" in refusal
    assert "restarts now" in await ann.done("edit", "reads", "--set", "volumes={data: /data}", "--yes")
    await ann.runs("reads", 2)
    await ann.says("reads", "read me\nbegun")
    assert (await ann.described("reads"))["volumes"] == {"data": "read-only"}
    await ann.done("edit", "reads", "--set", "volumes=", "--yes")
    await ann.runs("reads", 3)
    await ann.done("cancel", "reads", "--wait")


async def test_each_app_of_a_sweep_starts_from_a_checkpoint(ann: Plain, tmp_path: Path) -> None:
    await ann.done("submit", "--wait", write(tmp_path, "base", SAVES))
    file = write(
        tmp_path,
        "finer",
        'cat "$DORM_CHECKPOINT_DIR/step-3"; echo rate {lr}',
        **{"from": "base"},
        sweep={"lr": [0.5, 0.25]},
    )
    await ann.done("sweep", "run", file, "--wait")
    found = [await ann.described(f"finer-000{index}") for index in (0, 1)]
    (digest,) = {one["origin"].partition(", files ")[2] for one in found}
    assert len(digest) == 64, "both were given the same files"
    assert [one["origin"].startswith("base-") for one in found] == [True, True]
    assert await ann.done("logs", "finer-0001") == "weights\nrate 0.25\n"
    assert digest in await ann.done("events", "--app", "finer-0000", "-o", "json")


async def test_an_app_that_is_held_is_notified_of_once_it_has_ended(ann: Plain, tmp_path: Path) -> None:
    async with Receiver() as receiver:
        await done(ann.cluster.home, "webhooks", "add", "teams", receiver.url, "--event", "app.notify")
        notify = {"url": f"{receiver.url}?app=held", "on": ["completed", "resized"]}
        await ann.done("submit", write(tmp_path, "held", "true", hold=True, notify=notify))
        await ann.done("edit", "held", "--set", "env.LATE=1", "--yes")
        assert receiver.requests == []
        await ann.done("release", "held")
        await ann.done("wait", "held")
        await receiver.until(lambda found: any("completed" in one.event["type"] for one in found))
        kinds = [one.event["type"] for one in receiver.requests]
        assert kinds.count("io.dorm.app.completed.v1") == 1, kinds
        await done(ann.cluster.home, "webhooks", "remove", "teams")


async def test_a_command_runs_in_the_environment_that_the_spec_asks_for(ann: Plain, tmp_path: Path) -> None:
    setup = ['echo "one of us" > "$VIRTUAL_ENV/made"']
    await ann.done("submit", write(tmp_path, "builds", SLEEPS, setup=setup))
    await ann.runs("builds")
    program = "import os, sys; print(open(os.path.join(sys.prefix, 'made')).read(), end='')"
    assert await ann.done("exec", "builds", "--", "python", "-c", program) == "one of us\n"
    await ann.done("edit", "builds", "--set", 'setup=["echo another > $VIRTUAL_ENV/made"]', "--yes")
    await ann.runs("builds", 2)
    assert await ann.done("exec", "builds", "--", "python", "-c", program) == "another\n"
    await ann.done("cancel", "builds", "--wait")


async def test_a_restart_starts_in_a_fresh_copy_of_the_folder(ann: Plain, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.sh").write_text(f"ls | xargs echo sees; touch made; {SLEEPS}\n")
    file = write(tmp_path / "code", "copies", "exec sh main.sh", workdir=".")
    await ann.ships("submit", file)
    await ann.runs("copies")
    await ann.says("copies", "sees copies.yaml main.sh")
    await ann.done("restart", "copies")
    await ann.runs("copies", 2)
    await ann.says("copies", "sees copies.yaml main.sh")
    assert "made" not in await ann.done("logs", "copies")
    (tmp_path / "code" / "main.sh").write_text(f"echo changed; {SLEEPS}\n")
    assert "workdir" in await ann.ships("edit", "copies", "-f", file, "--yes")
    await ann.runs("copies", 3)
    await ann.says("copies", "changed")
    await ann.done("restart", "copies", "--fresh")
    await ann.runs("copies", 4)
    await ann.says("copies", "changed")
    await ann.done("cancel", "copies", "--wait")
