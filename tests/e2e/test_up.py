"""`dorm up` in one terminal, the other commands in another, on a cluster that knows its users."""

from __future__ import annotations

import asyncio
import json
import signal
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from dorm.core.query.views import sizes
from tests.e2e.commands import DORM, done, dorm, environment, refused, running, until_printed
from tests.e2e.local_up import Up, leaving_nothing, named, talker, trainer, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.client.client import Client

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with leaving_nothing(tmp_path_factory.mktemp("up")) as folder, up(folder, known=True) as running_cluster:
        yield running_cluster


async def test_it_shows_its_address(cluster: Up) -> None:
    text = await cluster.said("Ctrl-C stops")
    for words in ("cluster 'local' is up: 2 nodes of 1 core, 1 GiB", "plain processes", cluster.url, str(cluster.home)):
        assert words in text
    assert "warning" not in text


async def test_an_app_from_submission_to_logs(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    out = await done(home, "submit", write_spec(tmp_path, talker("own", n_max=2, labels={"team": "ants"})))
    assert out.startswith("own is accepted as own-")
    async with cluster.client() as client:
        app = await client.app("own")
        await until(client, lambda s: s.apps[app.id].phase == "running", "it runs")
    for row in (json.loads(await done(home, "ps", "-o", "json")), yaml.safe_load(await done(home, "ps", "-o", "yaml"))):
        assert (row[0]["name"], row[0]["phase"], row[0]["containers"]) == ("own", "running", 2)
    heading, line = (await done(home, "ps")).splitlines()[:2]
    assert heading.split() == ["NAME", "PHASE", "SIZE", "NODES", "STEP", "LOSS", "PROGRESS", "RESIZED", "AGE"]
    assert line.split()[:4] == ["own", "running", "2/2", "2"]
    assert app.id in await done(home, "ps", "-o", "wide")
    described = await done(home, "describe", "own")
    assert "2 on 2 nodes (n_min 1, n_max 2, weight 1)" in described
    assert "node-1  running" in described
    assert json.loads(await done(home, "describe", app.id, "-o", "json"))["spec"]["labels"] == {"team": "ants"}
    assert (await done(home, "logs", "own")).startswith(f"I am {app.id} 0 of 2\nline 0\n")
    assert (await done(home, "logs", "own", "--slot", "1")).startswith(f"I am {app.id} 1 of 2\n")
    assert (await done(home, "logs", "own", "--tail", "2")).count("\n") == 2
    assert "[slot.not_found]" in await refused(home, "logs", "own", "--slot", "7", code=1)
    said = await done(home, "update", "own", "--weight", "2.5", "--n-max", "1")
    assert said.startswith(
        "own: weight 2.5, n_min 1, n_max 1; it restarts from the beginning, since it has reported no checkpoint"
    )
    async with cluster.client() as client:
        # While it starts, `logs` says so and fails.
        await until(
            client, lambda s: s.apps[app.id].adjustments == 1 and s.apps[app.id].phase == "running", "it shrinks"
        )
    async with asyncio.timeout(30):
        while f"I am {app.id} 0 of 1" not in await done(home, "logs", "own"):  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.05)
    assert await done(home, "cancel", "own", "--reason", "seen enough", "--wait") == "own is cancelled\n"
    assert "own" not in await done(home, "ps")
    assert "seen enough" in await done(home, "ps", "--all")
    assert f"I am {app.id} 0 of 1" in await done(home, "logs", "own")
    assert "[app.ended]" in await refused(home, "cancel", "own", code=1)
    assert "[app.ended]" in await refused(home, "update", "own", "--weight", "2", code=1)


async def test_waiting_reports_how_it_ended(cluster: Up, tmp_path: Path) -> None:
    good = write_spec(tmp_path, talker("good", 3, 0.0))
    out = await done(cluster.home, "submit", "--wait", good)
    assert out.startswith("good completed after ")
    bad = write_spec(tmp_path, talker("bad", 3, 0.0, 7))
    code, out, err = await dorm(cluster.home, "submit", "--wait", bad)
    assert code == 1
    assert out.startswith("bad failed after ")
    assert err.endswith(" [app.failed]\n")
    assert "7" in err
    code, out, _ = await dorm(cluster.home, "submit", "--wait", bad, "--name", "worse", "-o", "json")
    assert (code, json.loads(out)["phase"]) == (1, "failed")


async def test_a_name_is_free_again_after_the_end(cluster: Up, tmp_path: Path) -> None:
    file = write_spec(tmp_path, talker("again", 1, 0.0))
    for _ in range(2):
        await done(cluster.home, "submit", "--wait", file)


async def test_a_repeat_with_the_same_id_is_the_same_app(cluster: Up, tmp_path: Path) -> None:
    file = write_spec(tmp_path, talker("once", 1, 0.0))
    first = await done(cluster.home, "submit", file, "--id", "retry-1")
    assert await done(cluster.home, "submit", file, "--id", "retry-1") == first


async def test_specs_come_from_standard_input_and_in_toml(cluster: Up, tmp_path: Path) -> None:
    document = talker("piped", 1, 0.0)
    out = await done(cluster.home, "submit", "-", "-o", "json", stdin=yaml.safe_dump(document))
    assert json.loads(out)["name"] == "piped"
    file = tmp_path / "app.toml"
    file.write_text('name = "tom"\ncommand = ["true"]\n[demand]\ncpu = "100m"\n')
    assert tomllib.loads(file.read_text())["name"] == "tom"
    assert (await done(cluster.home, "submit", "--wait", str(file))).startswith("tom completed")


async def test_logs_are_followed_to_the_end(cluster: Up, tmp_path: Path) -> None:
    await done(cluster.home, "submit", write_spec(tmp_path, talker("story", 20, 0.05)))
    async with cluster.client() as client:
        await until(client, lambda s: named(s, "story").phase == "running", "it runs")
    out = await done(cluster.home, "logs", "-f", "story")
    assert out.splitlines()[1:] == [f"line {number}" for number in range(20)]
    assert await done(cluster.home, "logs", "story", "--tail", "1") == "line 19\n"


async def test_events_are_lines_and_each_is_json(cluster: Up, tmp_path: Path) -> None:
    await done(cluster.home, "submit", "--wait", write_spec(tmp_path, talker("seen", 1, 0.0)))
    events = [json.loads(line) for line in (await done(cluster.home, "events", "-o", "json")).splitlines()]
    # Whether the master or an agent comes first is open.
    assert [event["position"].split(".")[0] for event in events[:2]] == ["1", "2"]
    kinds = ["AppSubmitted", "AppAccepted", "ContainerStarted", "ContainerExited", "AppCompleted"]
    out = await done(cluster.home, "events", "--app", "seen", *(part for kind in kinds for part in ("--kind", kind)))
    assert [line.split()[4] for line in out.splitlines()] == kinds
    last = await done(cluster.home, "events", "--tail", "1", "-o", "json")
    assert json.loads(last.splitlines()[-1])["position"] == events[-1]["position"]


async def test_following_events_until_ctrl_c(cluster: Up, tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    async with running(cluster.home, log, "events", "-f", "--tail", "1") as following:
        await until_printed(log, ":", following)
        await done(cluster.home, "submit", "--wait", write_spec(tmp_path, talker("followed", 1, 0.0)))
        text = await until_printed(log, "AppCompleted", following)
        assert "AppSubmitted" in text
        following.send_signal(signal.SIGINT)
        assert await following.wait() == 130
    assert "Traceback" not in log.read_text()


async def test_reading_only_the_first_line_is_not_an_error(cluster: Up) -> None:
    shell = await asyncio.create_subprocess_shell(
        f"set -o pipefail; {DORM[0]} -c '{DORM[2]}' events -f -o json | head -n 1",
        executable="/bin/bash",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(cluster.home),
    )
    # It can't print the next event any more.
    async with cluster.client() as client:
        sending = asyncio.create_task(_events_until_ended(client, shell))
        out, err = await asyncio.wait_for(shell.communicate(), 30.0)
        await sending
    assert (shell.returncode, err) == (0, b"")
    assert json.loads(out)["position"].split(".")[0] == "1"


async def _events_until_ended(client: Client, shell: asyncio.subprocess.Process) -> None:
    while shell.returncode is None:
        await client.drain("node-1", drain=False)
        await asyncio.sleep(0.2)


async def test_nodes_are_listed_and_drained(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    heading, *lines = (await done(home, "nodes")).splitlines()
    assert heading.split() == ["NODE", "CONDITION", "ADDRESS", "RUNTIME", "CONTAINERS", "CPU", "MEMORY"]
    assert [line.split()[0] for line in lines[:2]] == ["node-1", "node-2"]
    await done(home, "submit", write_spec(tmp_path, trainer("moved", 100_000, n_max=1)))
    async with cluster.client() as client:
        state = await until(client, lambda s: named(s, "moved").step > 2, "it trains")
        (node,) = sizes(named(state, "moved"))
        (other,) = {"node-1", "node-2"} - {node}
        said = await done(home, "drain", node, "--reason", "new disk", "--wait")
        assert said.startswith(f"{node} is empty after ")
        await until(
            client,
            lambda s: list(sizes(named(s, "moved"))) == [other] and named(s, "moved").phase == "running",
            "it goes on elsewhere",
        )
        late = await refused(home, "drain", other, "--wait", "--timeout", "0.1", code=1)
        assert late.endswith(" [node.not_empty]")
        assert "moved: 1 container" in late
        await done(home, "drain", other, "--undo")
        conditions = {row["name"]: row["condition"] for row in json.loads(await done(home, "nodes", "-o", "json"))}
        assert conditions == {node: "draining", other: "up"}
        assert "used again" in await done(home, "drain", node, "--undo")
        assert "[node.not_found]" in await refused(home, "drain", "node-9", code=1)
        await done(home, "cancel", "moved", "--wait")


async def test_a_further_master_follows(cluster: Up, tmp_path: Path) -> None:
    log = tmp_path / "master.log"
    async with running(cluster.home, log, "master") as process:
        text = await until_printed(log, "following", process)
        shown = json.loads(await done(cluster.home, "masters", "-o", "json"))
        assert shown["condition"] == "leading"
        assert shown["epoch"] >= 1
        assert shown["leader"] in text
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10.0) == 0


async def test_a_cluster_is_found_by_url_too(cluster: Up, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    by_file = json.loads(await done(cluster.home, "nodes", "-o", "json"))
    assert json.loads(await done(cluster.home, "nodes", "-o", "json", "--url", cluster.url)) == by_file
    mine = {"DORM_CREDENTIALS": cluster.running.credentials}
    by_url = ("nodes", "-o", "json", "--url", cluster.url)
    assert json.loads(await done(nowhere, *by_url, env=mine)) == by_file
    assert json.loads(await done(nowhere, "nodes", "-o", "json", env={**mine, "DORM_URL": cluster.url})) == by_file
    assert "[log.no_permission]" in await refused(nowhere, "nodes", "--url", cluster.url, code=1)
    assert "[log.no_server]" in await refused(nowhere, "nodes", "--url", "nats://127.0.0.1:1", code=1)
    # A flag wins over the environment.
    assert json.loads(await done(nowhere, *by_url, env={**mine, "DORM_URL": "nats://127.0.0.1:1"})) == by_file
    other = await refused(nowhere, "nodes", "--url", cluster.url, "--cluster", "other", code=1, env=mine)
    assert "[credentials.other_cluster]" in other


@pytest.mark.parametrize(
    "shell", ["bash", pytest.param("zsh", marks=pytest.mark.soak), pytest.param("fish", marks=pytest.mark.soak)]
)
async def test_names_are_completed(cluster: Up, tmp_path: Path, shell: str) -> None:
    name = f"long-{shell}"
    await done(cluster.home, "submit", write_spec(tmp_path, talker(name)))
    try:
        for words, wanted in (("dorm describe lo", name), ("dorm drain no", "node-1")):
            env = {
                "_DORM_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": "2",
                "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            }  # fmt: skip
            async with asyncio.timeout(60):
                # A cluster that does not answer at once completes nothing.
                while wanted not in await _completed(environment(cluster.home, **env)):
                    pass
    finally:
        await done(cluster.home, "cancel", name, "--wait")


async def _completed(env: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        DORM[0], "-c", "import sys; sys.argv[0] = 'dorm'\n" + DORM[2], stdout=asyncio.subprocess.PIPE, env=env
    )
    out, _ = await process.communicate()
    return out.decode()


async def test_another_cluster_leaves_this_one_alone(cluster: Up, tmp_path: Path) -> None:
    port = cluster.url.rsplit(":", 1)[1]
    common = ["up", "--runtime", "process"]
    text = await refused(cluster.home, *common, "--port", "0", code=1)
    assert "[data.in_use]" in text
    mine = json.loads(await asyncio.to_thread(Path(cluster.running.credentials).read_text))
    assert mine["url"] == cluster.url, "what runs keeps its credentials as they are"
    assert "[data.known_cluster]" in await refused(cluster.home, "up", "--open", code=1)
    assert "[port.in_use]" in await refused(tmp_path, *common, "--port", port, code=1)
    log = tmp_path / "second.log"
    data = str(tmp_path / "data")
    async with running(cluster.home, log, *common, "--port", "0", "--data", data) as second:
        assert f"commands go to the cluster at {cluster.url}" in await until_printed(log, "DORM_CREDENTIALS=", second)
        assert "node-2" in await done(cluster.home, "nodes")
        second.send_signal(signal.SIGINT)
        assert await second.wait() == 0
    assert "node-2" in await done(cluster.home, "nodes")
