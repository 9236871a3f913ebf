"""Two users on one `dorm up`, one of them hostile, on real containers: the other's app finishes with its full share,
without being read, changed or delayed.

Mallory has valid credentials, an app that takes whatever is left, a container, a token of the API and a raw connection to
NATS, and uses all of them at once, again and again, for as long as Alice's app runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import nats
import pytest

from agents.runtime.docker.runtime import DockerRuntime
from dorm.client.opening import open_client
from events import kinds as k
from events import subjects
from events.codec import encode
from events.nats.access import read_credentials
from tests.e2e.commands import done
from tests.e2e.local_up import Up, leaving_nothing, up
from tests.e2e.story import check_log, spec, until
from tests.security.hostile import REPLIES, VERBS, Attacker, body_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.client.client import Client
    from dorm.core.state import App
    from events.nats.access import Credentials

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak, pytest.mark.docker, pytest.mark.timeout(300)]

STEPS = 200
_SPY = """\
import json, os, socket, sys, time, urllib.error, urllib.request
nats, api, keys = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def without_key():
    with socket.create_connection(("127.0.0.1", nats), timeout=5) as connection:
        connection.recv(65536)
        connection.sendall(b'CONNECT {"verbose":false}\\r\\nPING\\r\\n')
        if b"PONG" not in connection.recv(65536):
            raise OSError("refused")

own = os.environ["DORM_CHECKPOINT_DIR"]
attempts = dict(
    own_checkpoints=lambda: open(own + "/mine", "w").write("x"),
    others_checkpoints=lambda: [open(one.path + "/any") for one in os.scandir(os.path.dirname(own)) if one.path != own][0],
    keys=lambda: open(keys).read(),
    engine=lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"),
    log_without_a_key=without_key,
    api_without_a_token=lambda: urllib.request.urlopen(api + "/v1/apps", timeout=5),
    dashboard_of_others=lambda: urllib.request.urlopen(api + "/v1/session/codes", data=b"", timeout=5),
    the_machine=lambda: open("/etc/mallory", "w"),
)
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "done"
    except Exception as error:
        found[name] = type(error).__name__
print(json.dumps(found), flush=True)
time.sleep(10000)
"""


class Mallory:
    """All that she has, and what came of it."""

    def __init__(self, me: Credentials, victim: App, api: str, token: str) -> None:
        self.me = me
        self.victim = victim
        self.api = api
        self.token = token
        self.tried = 0
        self.answers: set[int] = set()
        """Statuses of the API's answers about Alice's app."""

    async def act(self) -> None:
        """Do everything, for as long as it is let."""
        while True:
            async with asyncio.TaskGroup() as tasks:
                for one in (self._forge(), self._trick_jetstream(), self._flood(), self._call_the_api()):
                    tasks.create_task(one)

    @contextlib.asynccontextmanager
    async def _raw(self) -> AsyncIterator[Attacker]:
        one = Attacker()
        one.client = await nats.connect(
            self.me.url, nkeys_seed_str=self.me.seed.decode(), inbox_prefix=self.me.inbox, error_cb=one.note
        )
        try:
            yield one
        finally:
            await one.client.close()

    def _subject(self, kind: str, who: str = "") -> str:
        return subjects.fact(self.me.cluster, kind, who or self.me.name)

    async def _forge(self) -> None:
        """What a server lets her say, about what is not hers; and what it does not let her say."""
        app, spec_ = self.victim.id, spec("stolen", "logistic", 1, n_max=1)
        acts: list[k.Event] = [
            k.AppCancelRequested(id="m.1", by="alice", app=app, kill=True),
            k.AppCancelRequested(id="m.2", by="alice", app=self.victim.name),
            k.AppUpdated(id="m.3", by="alice", app=app, n_max=1, weight=0.001),
            k.AppSubmitted(id=self.victim.submission, by="alice", spec={**spec_, "user": "alice"}),
            k.NodeDrainRequested(id="m.4", node="node-1"),
            k.PolicyChanged(id="m.5", node_lease_s=1.0),
            k.TrustEnabled(id="m.6"),
            k.UserAdded(id="m.7", name="mallory", role="admin"),
            k.UserRemoved(id="m.8", name="alice"),
            k.NodeExpelled(id="m.9", node="node-1"),
            k.AppProgressed(id="m.10", app=app, generation=1, step=10**9),
            k.AppCheckpointed(id="m.11", app=app, generation=1, step=10**9),
            k.ContainerExited(id="m.12", app=app, generation=1, slot=0, node="node-1", exit_code=1),
            k.NodeLeft(id="m.13", node="node-1"),
        ]
        async with self._raw() as one:
            for act, who in itertools.product(acts, ("mallory", "alice", "node-1", "master")):
                await one.client.publish(self._subject(type(act).__name__, who), encode(act))
                self.tried += 1
            round_ = k.Round(id="m.r", epoch=2**60, basis=1, allocated=True, events=[])
            await one.client.publish(subjects.rounds(self.me.cluster), encode(round_))
            for secret in ("_INBOX.>", "_INBOX.user.alice.>", f"dorm.{self.me.cluster}.>", ">"):
                await one.client.subscribe(secret)
                self.tried += 1
            await one.taken()

    async def _trick_jetstream(self) -> None:
        cluster = self.me.cluster
        streams = {name: f"{kind}{cluster}" for name, kind in
                   (("log", "DORM-"), ("lease", "KV_DORM_leadership-"), ("snapshots", "DORM_snapshots-"))}  # fmt: skip
        async with self._raw() as one:
            for prefix, verb, reply in itertools.product(("$JS.API", "DORMJS"), VERBS, REPLIES):
                to = reply.replace(".lab.", f".{cluster}.").replace("-lab", f"-{cluster}")
                body = body_of(verb).replace(b"DORM-lab", streams["log"].encode())
                await one.client.publish(f"{prefix}.{verb.format(**streams)}", body, reply=to)
                self.tried += 1
            await one.taken()

    async def _flood(self) -> None:
        async with self._raw() as one:
            for number in range(300):
                headers = {"Nats-Msg-Id": f"alice.{number}", "Nats-Rollup": "all"}
                await one.client.publish(self._subject("AppSubmitted"), b"\xff" * 2000, headers=headers)
                await one.client.publish(self._subject("AppUpdated"), b'{"kind": "AppUpdated", "app": 7}')
                self.tried += 2
            await one.client.publish(self._subject("AppSubmitted"), b"\xff" * 200_000)
            await one.taken()

    async def _call_the_api(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        path = f"{self.api}/v1/apps/{self.victim.id}"
        calls = [
            ("GET", path, None),
            ("GET", f"{path}/logs", None),
            ("GET", f"{path}/story", None),
            ("GET", f"{path}/explain", None),
        ]
        calls += [("POST", f"{path}/cancel", {}), ("POST", f"{path}/kill", {}), ("PATCH", path, {"n_max": 1})]  # type: ignore[list-item]
        calls += [("POST", f"{self.api}/v1/nodes/node-1/drain", {}), ("PUT", f"{self.api}/v1/policy", {"idle_s": 61})]  # type: ignore[list-item]
        async with aiohttp.ClientSession(headers=headers) as session:
            for (method, url, body), who in itertools.product(calls, ({}, {"Dorm-User": "alice"})):
                async with session.request(method, url, json=body, headers=who) as answer:
                    self.answers.add(answer.status)
                self.tried += 1


@contextlib.asynccontextmanager
async def without_containers(folder: Path, docker_host: str) -> AsyncIterator[None]:
    """Remove what the cluster leaves on the engine, where ended containers stay for their output."""
    try:
        yield
    finally:
        for number in (1, 2):
            root = folder / "home" / "local" / "nodes" / f"node-{number}" / "containers"
            runtime = DockerRuntime(f"node-{number}", root, cluster="local", url=docker_host)
            await runtime.open()
            try:
                for seen in await runtime.list():
                    await runtime.stop(seen.key, 0.0)
                    await runtime.remove(seen.key)
            finally:
                await runtime.close()


async def test_a_hostile_user_cannot_read_change_or_delay_anothers_work(
    tmp_path: Path, docker_host: str, docker_image: str, record_property: Any
) -> None:
    flags = ("--runtime", "docker", "--docker", docker_host, "--api", "0", "--capacity", "cpu=1,memory=2GiB")
    async with (
        leaving_nothing(tmp_path) as folder,
        without_containers(folder, docker_host),
        up(folder, *flags, known=True, api=True) as cluster,
    ):
        who, tokens = {}, {}
        admin = read_credentials(Path(cluster.running.credentials))
        for name in ("alice", "mallory"):
            await done(cluster.home, "user", "add", name, "--to", str(tmp_path / f"{name}.json"))
            who[name] = read_credentials(tmp_path / f"{name}.json")
            made = await done(cluster.home, "token", "add", "--for", name, "-o", "json")
            tokens[name] = json.loads(made)["secret"]
        async with (
            await open_client(cluster.url, "local", credentials=who["alice"]) as alice,
            await open_client(cluster.url, "local", credentials=who["mallory"]) as mallory,
        ):
            spied = await _spy(cluster, mallory)
            greedy = await mallory.submit({**spec("greedy", "logistic", 10**6, n_max=50), "demand": {"cpu": "100m"}})
            await until(mallory, lambda state: state.apps[greedy.id].phase == "running", "she has what is left")
            # The same with a neighbor that only takes what it gets: a start then waits until that one has shrunk.
            calm = await _run(alice, "calm")
            before = await alice.state()
            settings, users = before.settings, dict(before.known.users if before.known is not None else {})
            acts: list[Mallory] = []

            async def attack(app: App) -> None:
                one = Mallory(who["mallory"], app, cluster.running.dashboard, tokens["mallory"])
                acts.append(one)
                await one.act()

            attacked = await _run(alice, "attacked", attack)
            state = await alice.state()
            (act,) = acts
            record_property("hostile_acts", act.tried)
            for name, measured in (("calm", calm), ("attacked", attacked)):
                record_property(f"started_after_s_{name}", measured[0])
                record_property(f"ended_after_s_{name}", measured[1])
            assert act.tried > 1000
            assert act.answers <= {403, 404}, "404 while the API has not read of the app yet"
            assert spied.pop("own_checkpoints") == "done", "the control"
            assert "done" not in spied.values(), spied
            # Nothing else has changed, no process has ended, and the log names the author.
            assert state.settings == settings
            assert state.known is not None
            assert state.known.users == users
            async with await open_client(cluster.url, "local", credentials=admin) as root:
                seen = (await root.state()).known
            assert seen is not None
            assert {refusal.who for refusal in seen.refusals} == {"mallory"}
            assert not state.known.refusals, "hers are nothing to Alice"
            assert [(node.condition, node.draining) for node in state.nodes.values()] == [("up", "")] * 2
            assert json.loads(await done(cluster.home, "masters", "-o", "json"))["epoch"] == 1
            assert cluster.process.returncode is None
            # A machine that tests share has its ups and downs, and hers take processors too; an attack that works shows more.
            assert all(one < 3 * other + 5 for one, other in zip(attacked, calm, strict=True))
            await mallory.cancel(greedy.id, kill=True)
            async with await open_client(cluster.url, "local", credentials=admin) as root:
                await check_log(root)


async def _run(alice: Client, name: str, beside: Any = None) -> tuple[float, float]:
    """Let Alice's app run to its end, with its full share from the start; return how long after its submission it had started
    and ended, in seconds."""
    app = await alice.submit(spec(name, "logistic", STEPS, n_max=2))
    attacking = asyncio.create_task(beside(app)) if beside is not None else None
    try:
        async with asyncio.timeout(200):
            ended = await alice.wait(app.id)
        assert attacking is None or not attacking.done()
    finally:
        if attacking is not None:
            attacking.cancel()
            await asyncio.wait({attacking})
    assert (ended.ended, ended.user, ended.n_max, ended.weight) == ("completed", "alice", 2, 1)
    assert (ended.step, ended.failures, ended.lost_steps, ended.adjustments) == (STEPS, 0, 0, 0)
    assert {number: len(one.containers) for number, one in ended.generations.items()} == {1: 2}
    return (ended.generations[1].started_at - ended.submitted_at) / 1e9, (ended.ended_at - ended.submitted_at) / 1e9


async def _spy(cluster: Up, mallory: Client) -> dict[str, str]:
    """What Mallory's container can do."""
    port = cluster.url.rpartition(":")[2]
    keys = str(Path(cluster.running.credentials))
    app = await mallory.submit(
        {
            **spec("spy", "logistic", 1, n_max=1),
            "command": ["python3", "-c", _SPY, port, cluster.running.dashboard, keys],
        }
    )
    await until(mallory, lambda state: state.apps[app.id].phase == "running", "the spy runs")
    async with asyncio.timeout(60):
        said = b""
        async for piece in mallory.logs(app.id, follow=True):
            said += piece
            if b"}" in said:
                break
    await mallory.cancel(app.id, kill=True)
    await until(mallory, lambda state: bool(state.apps[app.id].ended) and not state.apps[app.id].stopping, "it is gone")
    found: dict[str, str] = json.loads(said.decode())
    return found
