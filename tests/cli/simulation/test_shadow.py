"""`dorm shadow` on a real NATS server: it shows differences, and writes only to its own stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
import pytest_asyncio

from dorm.cli.shadow import _hour_in_words
from dorm.client.client import Client
from dorm.master.master import Master
from events import subjects
from events.codec import decode, encode
from events.kinds import PolicyChanged, Resized, Round
from events.log.records import LogError
from events.nats.connection import Connection
from events.nats.stores import shadow_stream
from events.nats.streams import log_stream, stream_configs
from tests.core.records import document, joined
from tests.e2e.commands import DORM, done, dorm, environment, refused
from tests.golden.made import FOLDER
from tests.lab.machines.ports import free_port
from tests.master.leading import running

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer


class Lab:
    def __init__(self, home: Path, url: str, connection: Connection) -> None:
        self.home, self.url, self.cluster = home, url, connection.cluster
        self.log, self.bus, self.leadership = connection.log, connection.bus, connection.leadership
        self.client = Client(connection.log, connection.bus, connection.cluster, user="ann", connection=connection)
        self.common = ["--url", url, "--cluster", connection.cluster]

    def master(self) -> contextlib.AbstractAsyncContextManager[Master]:
        return running(
            Master(self.log, self.bus, self.cluster, name="m", clock=time.time_ns, leadership=self.leadership)
        )

    @contextlib.asynccontextmanager
    async def shadow(self, *more: str) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            *DORM, "shadow", *more, *self.common, "-o", "json", stdout=PIPE, stderr=PIPE, env=environment(self.home)
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def written(self) -> dict[str, tuple[int, int]]:
        """Messages and last sequence of each stream of the cluster, the lease's included."""
        client = await nats.connect(self.url)
        try:
            manager = client.jetstream()
            found = {}
            for config in stream_configs(self.cluster):
                state = (await manager.stream_info(str(config.name))).state
                found[str(config.name)] = state.messages, state.last_seq
            return found
        finally:
            await client.close()

    async def published(self) -> list[tuple[str, dict[str, Any]]]:
        """The comparison stream."""
        client = await nats.connect(self.url)
        try:
            stream = client.jetstream()
            last = (await stream.stream_info(shadow_stream(self.cluster))).state.last_seq
            found = [await stream.get_msg(shadow_stream(self.cluster), seq) for seq in range(1, last + 1)]
            return [(str(one.subject), json.loads(one.data or b"")) for one in found]
        finally:
            await client.close()


@pytest_asyncio.fixture
async def lab(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[Lab]:
    connection = await Connection.open(nats_server.url, f"shadow-{tmp_path.name[-20:]}", create=True)
    made = Lab(tmp_path / "home", nats_server.url, connection)
    async with made.client:
        await made.log.append(subjects.fact(made.cluster, "NodeJoined", "n1"), encode(joined("n1")))
        yield made


async def line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        text = await process.stdout.readline()
    assert text, (await process.stderr.read()).decode() if process.stderr else ""
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.nats
@pytest.mark.slow
async def test_it_follows_each_decision_and_publishes_differences(lab: Lab) -> None:
    async with lab.master(), lab.shadow("--policy", "static", "--set", "count=1", "--what-if", "0s") as process:
        await lab.client.change_policy(PolicyChanged(quiet_ms=0, params={"theta2": 1.0}))
        await asyncio.wait_for(has_stream(lab), 60)
        await lab.client.submit(document("first", n_max=4))
        found = await line(process)
        while not found["live"]:
            found = await line(process)
        assert (found["kind"], found["policy"], found["decided_by"]) == ("comparison", "static", "dorm")
        assert [(app["name"], app["has"], app["would_have"], app["code"]) for app in found["apps"]] == [
            ("first", 4, 1, "static_count")
        ]
        assert found["now"]["utilization"] > found["then"]["utilization"]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 130
        assert process.stderr is not None
        assert await process.stderr.read() == b"", "Ctrl-C needs no explanation"
    published = await lab.published()
    assert {subject for subject, _ in published} == {subjects.shadow(lab.cluster, "static", lab_user())}
    assert found in [body for _, body in published]
    assert {body["kind"] for _, body in published} == {"comparison"}


async def decided(lab: Lab) -> None:
    async with contextlib.aclosing(lab.log.read(follow=True)) as batches:
        async for batch in batches:
            for event in map(decode, batch):
                if isinstance(event, Round) and any(isinstance(fact, Resized) for fact in event.events):
                    return


@pytest.mark.parametrize(("window_s", "short"), [(79.0, True), (3600.0, False)])
def test_figures_per_hour_of_a_short_window_say_that_it_is_short(window_s: float, short: bool) -> None:
    figures = {"completed": 45.7, "adjustments": 0.0}
    words = _hour_in_words(
        {"failed": "", "unchanged": figures, "changed": None, "completion_difference_s": None, "window_s": window_s}
    )
    assert ("too short for reliable figures per hour" in words) == short


def lab_user() -> str:
    import getpass

    return subjects.token(getpass.getuser())


async def has_stream(lab: Lab) -> None:
    """The shadow creates its stream before it follows."""
    client = await nats.connect(lab.url)
    try:
        while True:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await client.jetstream().stream_info(shadow_stream(lab.cluster))
                return
            await asyncio.sleep(0.05)
    finally:
        await client.close()


@pytest.mark.nats
@pytest.mark.slow
async def test_it_writes_to_no_stream_of_the_cluster(lab: Lab) -> None:
    """With no master and no agent running, whatever is written is the shadow's."""
    async with lab.master():
        await lab.client.change_policy(PolicyChanged(quiet_ms=0))
        await lab.client.submit(document("first", n_max=4))
        await asyncio.wait_for(decided(lab), 60)
    before, holder = await lab.written(), await lab.leadership.look()
    out = await done(lab.home, "shadow", "--policy", "static", "--once", "-o", "json", *lab.common)
    once, hour = map(json.loads, out.splitlines())
    assert (once["kind"], hour["kind"]) == ("comparison", "what_if")
    out = await done(lab.home, "shadow", "--policy", "tiresias", "--once", "--what-if", "0s", *lab.common)
    assert "apps differ" in out or "app differs" in out
    async with lab.shadow("--policy", "static", "--set", "count=1", "--since", "0", "--what-if", "0s") as process:
        assert (await line(process))["kind"] == "comparison"
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)
    assert await lab.written() == before
    assert await lab.leadership.look() == holder
    assert len(await lab.published()) >= 4


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_the_last_hour_is_simulated_periodically(lab: Lab) -> None:
    async with lab.master():
        await lab.client.change_policy(PolicyChanged(quiet_ms=0))
        await lab.client.submit(document("first", n_max=4))
        await asyncio.wait_for(decided(lab), 60)
    async with lab.shadow("--policy", "static", "--what-if", "1s", "--no-publish") as process:
        first, second = await line(process), await line(process)
    assert (first["kind"], second["kind"]) == ("what_if", "what_if")
    assert first["failed"] == ""
    assert first["window_s"] > 0
    assert first["backtest"]["hindsight"] is True
    assert first["changed"]["completed"] == first["unchanged"]["completed"] == 0


@pytest.mark.nats
@pytest.mark.slow
async def test_without_publishing_it_creates_nothing(lab: Lab) -> None:
    out = await done(lab.home, "shadow", "--policy", "static", "--once", "--what-if", "0s", "--no-publish", *lab.common)
    assert out
    client = await nats.connect(lab.url)
    try:
        with pytest.raises(nats.js.errors.NotFoundError):
            await client.jetstream().stream_info(shadow_stream(lab.cluster))
    finally:
        await client.close()


def permitted(cluster: str) -> dict[str, list[str]]:
    """What docs/operations.md says that a shadow's user needs: to read the log, to publish comparisons, and their stream."""
    log, snapshots, stream = log_stream(cluster), f"DORM_snapshots-{cluster}", shadow_stream(cluster)
    reads = ["INFO", "STREAM.NAMES", f"STREAM.INFO.{log}", f"STREAM.INFO.{stream}", f"STREAM.CREATE.{stream}"]
    reads += [f"CONSUMER.*.{log}", f"CONSUMER.*.{log}.>", f"CONSUMER.MSG.NEXT.{log}.>"]
    reads += [f"STREAM.MSG.GET.{log}", f"DIRECT.GET.{log}", f"DIRECT.GET.{log}.>", f"STREAM.INFO.{snapshots}"]
    reads += [f"CONSUMER.*.{snapshots}.>", f"DIRECT.GET.{snapshots}", f"DIRECT.GET.{snapshots}.>"]
    return {"allow": [f"dorm.{cluster}.shadow.>", "_INBOX.>", "$JS.ACK.>", *(f"$JS.API.{one}" for one in reads)]}


@pytest.mark.nats
@pytest.mark.slow
async def test_a_user_who_may_publish_nothing_else_can_run_it(tmp_path: Path) -> None:
    """A server that enforces it: a shadow needs no right to say anything on a cluster's own subjects."""
    home, cluster = tmp_path / "nats", "guarded"
    port = free_port()
    home.mkdir()
    users = [
        {"user": "all", "password": "x"},
        {"user": "shadow", "password": "y", "permissions": {"publish": permitted(cluster)}},
    ]
    config = {"port": port, "jetstream": {"store_dir": str(home / "data")}, "authorization": {"users": users}}
    (home / "server.conf").write_text(json.dumps(config))
    server = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("nats-server")), "--config", str(home / "server.conf"), stderr=DEVNULL
    )
    try:
        url = f"nats://all:x@127.0.0.1:{port}"
        connection = await Connection.open(url, cluster, create=True, patient=True)
        made = Lab(tmp_path / "home", url, connection)
        async with made.client:
            await made.log.append(subjects.fact(cluster, "NodeJoined", "n1"), encode(joined("n1")))
            async with made.master():
                await made.client.change_policy(PolicyChanged(quiet_ms=0))
                await made.client.submit(document("first", n_max=4))
                await asyncio.wait_for(decided(made), 60)
            before = await made.written()
            guarded = ["--url", f"nats://shadow:y@127.0.0.1:{port}", "--cluster", cluster]
            code, out, err = await dorm(
                made.home, "shadow", "--policy", "static", "--once", "--what-if", "0s", "-o", "json", *guarded
            )
            assert (code, "the URL holds a password" in err) == (0, True), err
            assert json.loads(out)["kind"] == "comparison"
            assert len(await made.published()) == 1
            other = await Connection.open(guarded[1], cluster)
            try:
                with pytest.raises(LogError):
                    await other.log.append(subjects.rounds(cluster), b"{}", timeout=2.0)
            finally:
                await other.close()
            assert await made.written() == before
    finally:
        server.terminate()
        await server.wait()


@pytest.mark.slow
async def test_a_recorded_log_is_compared_decision_by_decision(tmp_path: Path) -> None:
    file = str(FOLDER / "0.5.0.dorm")
    common = ["--policy", "static", "--set", "count=1", "--file", file]
    lines = [json.loads(one) for one in (await done(tmp_path, "shadow", *common, "-o", "json")).splitlines()]
    *comparisons, hour = lines
    assert [one["seq"] for one in comparisons] == sorted({one["seq"] for one in comparisons})
    assert {one["kind"] for one in comparisons} == {"comparison"}
    assert hour["kind"] == "what_if"
    assert (hour["failed"], hour["unchanged"]["completed"]) == ("", 75)
    again = [json.loads(one) for one in (await done(tmp_path, "shadow", *common, "-o", "json")).splitlines()]
    untimed = [[{**one, "took_s": 0} for one in run[:-1]] for run in (lines, again)]
    assert untimed[0] == untimed[1], "a recorded log gives the same comparisons each time"
    shown = await done(tmp_path, "shadow", *common, "--what-if", "0s")
    assert len(shown.splitlines()) == len(comparisons)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--policy", "nothing"], "policy.unknown"),
        (["--policy", "static", "--set", "size=3"], "policy.parameter.unknown"),
        (["--policy", "static", "--what-if", "soon"], "usage.what_if.malformed"),
        (["--policy", "static", "--once", "--since", "3"], "usage.conflict"),
    ],
)
async def test_wrong_usage_is_one_line(tmp_path: Path, arguments: list[str], code: str) -> None:
    reason = await refused(tmp_path, "shadow", *arguments, code=2)
    assert reason.endswith(f"[{code}]")
