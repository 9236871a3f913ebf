"""A cluster that knows its users, command by command: made by `dorm init` with TLS, and by `dorm up`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest

from dorm.local.nats_server import find_binary
from tests.e2e.commands import done, refused, running, until_printed
from tests.e2e.local_up import leaving_nothing, named, talker, up, write_spec
from tests.e2e.story import until
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.local_up import Up

pytestmark = [pytest.mark.nats, pytest.mark.slow]


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[None]:
    """The NATS server as its operator runs it: with the configuration that `dorm init` wrote, and nothing else."""
    with (folder / "server.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            find_binary(), "-c", str(folder / "nats.conf"), stdout=log, stderr=log
        )
    try:
        yield
    finally:
        server.terminate()
        await server.wait()


async def test_from_init_to_a_node_that_joins_and_is_expelled(tmp_path: Path) -> None:
    home, lab, port = tmp_path / "home", tmp_path / "lab", free_port()
    arguments = ("init", str(lab), "--cluster", "lab", "--port", str(port), "--admin", "root", "--tls")
    assert "root is its admin" in await done(home, *arguments)
    await done(home, "context", "use", "lab")
    assert "identity: admin root" in await done(home, "context", "show")
    async with (
        served(lab),
        running(
            home, tmp_path / "master.log", "master", "--credentials", str(lab / "security" / "master.json")
        ) as master,
    ):
        await until_printed(tmp_path / "master.log", "leading", master)
        await done(home, *arguments)  # Once more, next to the running server: nothing is lost.

        # A node makes its own key, with a token for one use.
        said = tmp_path / "token"
        async with running(
            home, said, "node", "intro", "n1", "--ttl", "60s", "--capacity", "cpu=1,memory=1GiB"
        ) as intro:
            text = await until_printed(said, "dorm1.", intro)
            await until_printed(said, "fingerprint", intro)
            (tmp_path / "first").write_text(next(line for line in text.splitlines() if line.startswith("dorm1.")))
            agent = (
                "agent",
                "--token",
                str(tmp_path / "first"),
                "--runtime",
                "process",
                "--data",
                str(tmp_path / "n1"),
            )
            async with running(home, tmp_path / "agent.log", *agent, "--capacity", "cpu=1,memory=1GiB") as process:
                await until_printed(tmp_path / "agent.log", "joined", process)
                assert await asyncio.wait_for(intro.wait(), 20) == 0
                key = tmp_path / "n1" / "node.json"
                assert stat.S_IMODE(key.stat().st_mode) == 0o600
                rows = json.loads(await done(home, "user", "list", "-o", "json"))
                assert [(row["name"], row["role"]) for row in rows] == [("root", "admin"), ("n1", "node")]
                assert json.loads(key.read_text())["seed"] not in (lab / "security" / "accounts.conf").read_text()
                # The token is worth nothing any more.
                again = ("agent", "--token", str(tmp_path / "first"), "--data", str(tmp_path / "other"))
                assert "log.no_permission" in await refused(home, *again, code=1)

                # A user submits an app, and may do nothing else.
                await done(home, "user", "add", "alice", "--to", str(tmp_path / "alice.json"))
                await done(home, "context", "add", "alice", "--credentials", str(tmp_path / "alice.json"))
                spec = write_spec(tmp_path, talker("own"))
                assert (await done(home, "submit", spec, "--context", "alice")).startswith("own is accepted")
                for forbidden in (("drain", "n1"), ("user", "add", "bob"), ("log", "seal"), ("node", "remove", "n1")):
                    reason = await refused(home, *forbidden, "--context", "alice", code=1)
                    # By the client, which knows the log, or else by the server.
                    assert "[identity." in reason or "[log.no_permission]" in reason
                stranger = ("ps", "--url", f"tls://127.0.0.1:{port}", "--cluster", "lab")
                assert "log.server_not_trusted" in await refused(home, *stranger, code=1)

                # A new key ends the old one.
                new = str(tmp_path / "new.json")
                await done(home, "user", "add", "alice", "--to", new)
                assert "log.no_permission" in await refused(home, "ps", "--context", "alice", code=1)
                assert "own" in await done(home, "ps", "--credentials", new)

                # Both can be shut out while everything runs.
                await done(home, "user", "remove", "alice")
                assert "log.no_permission" in await refused(home, "ps", "--credentials", new, code=1)
                await done(home, "node", "remove", "n1")
                assert await asyncio.wait_for(process.wait(), 30) == 1
                # The agent learns it from the log or from the server's refusal, whichever comes first.
                ended = (tmp_path / "agent.log").read_text()
                assert "does not let node n1 in" in ended or "the cluster knows no node n1" in ended
        assert master.returncode is None


async def published_by_a_client_of_nats(cluster: Up) -> None:
    """As the documentation shows it for any language: one message, by a client that knows nothing of Dorm."""
    key = Path(cluster.running.credentials).with_suffix(".nk")
    client = await nats.connect(cluster.url, nkeys_seed=str(key))
    try:
        body = {"kind": "AppSubmitted", "spec": talker("plain", 1, 0.0)}
        await client.publish(f"dorm.local.AppSubmitted.{key.stem}", json.dumps(body).encode())
        await client.flush()
    finally:
        await client.close()
    async with cluster.client() as mine:
        state = await until(mine, lambda state: state.find_app("plain") is not None, "it is accepted")
        assert named(state, "plain").user == key.stem


async def test_up_with_identities_needs_no_extra_step_and_admits_only_its_user(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, known=True) as cluster:
        spec = write_spec(tmp_path, talker("own"))
        assert (await done(cluster.home, "submit", spec)).startswith("own is accepted")
        await published_by_a_client_of_nats(cluster)
        await done(cluster.home, "user", "add", "alice", "--to", str(tmp_path / "alice.json"))
        alice = ("--credentials", str(tmp_path / "alice.json"))
        other = write_spec(tmp_path, talker("hers"))
        assert (await done(cluster.home, "submit", other, *alice)).startswith("hers is accepted")
        assert [row["name"] for row in json.loads(await done(cluster.home, "nodes", "-o", "json", *alice))] == [
            "node-1",
            "node-2",
        ]
        assert "log.no_permission" in await refused(tmp_path / "elsewhere", "ps", "--url", cluster.url, code=1)
        assert (cluster.home / "local" / "nats" / "security" / "accounts.conf").exists()
        archive = str(tmp_path / "all.dorm")
        await done(cluster.home, "replay", "export", archive)
        assert "import.known_cluster" in await refused(
            cluster.home, "replay", "import", archive, "--cluster", "copy", code=1
        )
