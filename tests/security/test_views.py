"""Two tenants on one real cluster: whatever a plain user asks, in whatever way, holds no word of the other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from dorm.client.errors import NotFound
from dorm.client.opening import open_client
from events import subjects
from events.copying import FILES, PUT, ListFiles, Place, Refusal, WriteBlock, answer_decoder, encode
from events.log.records import LogRefused, LogUnavailable
from events.nats.access import read_credentials
from events.requests import LogQuestion, ViewQuestion
from tests.e2e.commands import done, refused
from tests.e2e.local_up import Up, leaving_nothing, talker, up
from tests.e2e.story import until
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.core.state import App
    from events.nats.access import Credentials

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CANARY = "canary"
HERS, HIS = "hers", f"{CANARY}-app"


class Two:
    """A cluster on which alice and bob each run an app, and where rita reads the log."""

    def __init__(self, cluster: Up, folder: Path, who: dict[str, Credentials], apps: dict[str, App]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.who = who
        self.apps = apps

    def as_user(self, name: str) -> tuple[str, str]:
        return "--credentials", str(self.folder / f"{name}.json")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    path = tmp_path_factory.mktemp("views")
    async with leaving_nothing(path) as folder, up(folder, "--trust-apps", agents=1, known=True) as cluster:
        who = {}
        for name, role in (("alice", "user"), ("bob", "user"), ("rita", "reader")):
            await done(cluster.home, "user", "add", name, "--role", role, "--to", str(folder / f"{name}.json"))
            who[name] = read_credentials(folder / f"{name}.json")
        apps = {}
        for name, app in (("alice", HERS), ("bob", HIS)):
            secret = CANARY if name == "bob" else "plain"
            spec = talker(app, env={f"{secret}_TOKENS": secret}, labels={secret: secret}, image=f"{secret}:1", n_max=2)
            async with await open_client(cluster.url, "local", credentials=who[name]) as client:
                made = await client.submit(spec)
                await until(client, lambda state, id=made.id: state.apps[id].phase == "running", "it runs")  # type: ignore[misc]
                apps[name] = await client.app(made.id)
        yield Two(cluster, folder, who, apps)


COMMANDS: dict[str, tuple[str, ...]] = {
    "ps": ("ps", "--all", "-o", "json"),
    "ps table": ("ps",),
    "events": ("events", "-o", "json"),
    "story": ("story", HERS),
    "story of a node": ("story", "node-1"),
    "explain": ("explain", HERS),
    "describe": ("describe", HERS),
    "logs": ("logs", HERS, "--tail", "3"),
    "state": ("state", "--at", "-0.1s", "-o", "json"),
    "top": ("top", "--once"),
    "plan": ("plan",),
    "nodes": ("nodes", "-o", "json"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_commands_work_on_the_own_tenants_view(two: Two, command: tuple[str, ...]) -> None:
    said = await done(two.cluster.home, *command, *two.as_user("alice"))
    assert CANARY not in said.lower()
    assert "bob" not in said
    if command[0] not in ("logs", "top", "plan", "nodes") and command[-1] != "node-1":
        assert HERS in said


async def test_a_reader_reads_the_whole_log(two: Two) -> None:
    """The control: what alice does not see is there."""
    for command in (("ps", "-o", "json"), ("events", "-o", "json"), ("state", HIS)):
        assert CANARY in await done(two.cluster.home, *command, *two.as_user("rita"))
    assert "line" in await done(two.cluster.home, "logs", HIS, "--tail", "3", *two.as_user("rita"))
    assert CANARY in await done(two.cluster.home, "describe", HIS, *two.as_user("bob"))


async def test_apps_of_others_are_visible_without_their_names(two: Two) -> None:
    async with await open_client(two.cluster.url, "local", credentials=two.who["alice"]) as alice:
        state = await alice.state()
        (other,) = [app for app in state.apps.values() if app.tenant != "alice"]
        async with await open_client(two.cluster.url, "local", credentials=two.who["rita"]) as rita:
            his = await rita.app(two.apps["bob"].id)
        assert (other.demand, other.n_max, other.weight, other.seq) == (his.demand, his.n_max, his.weight, his.seq)
        assert other.generation == his.generation
        assert len(other.generations[other.generation].containers) == len(his.generations[his.generation].containers)
        assert other.name.startswith("app-")
        assert (other.spec.env, other.spec.command, other.spec.image) == ({}, ["-"], "")
        with raises(NotFound, "app.not_found"):
            await alice.app(HIS)


async def test_messages_to_a_user_contain_nothing_of_other_tenants(two: Two) -> None:
    """All records from the first on, each state to start from, heartbeats."""
    async with await open_client(two.cluster.url, "local", credentials=two.who["alice"]) as alice:
        records = [record async for record in alice.records()]
        assert [record.seq for record in records] == list(range(1, records[-1].seq + 1))
        infos = await alice.log.snapshots.infos()
        assert infos
        parts: list[Any] = [records]
        for info in infos:
            found = await alice.log.snapshots.fetch(info)
            assert found is not None
            parts.append(found)
        state = await alice.state()
        parts += [state, await alice.bus.last_report(subjects.report("local", "node-1"))]
        sent = msgspec.msgpack.encode(parts)
        assert CANARY.encode() not in sent.lower()
        assert b"bob" not in sent
        # The control: the same, of a reader.
    async with await open_client(two.cluster.url, "local", credentials=two.who["rita"]) as rita:
        assert CANARY.encode() in msgspec.msgpack.encode([record async for record in rita.records()])


async def test_users_read_only_their_own_output(two: Two) -> None:
    async with await open_client(two.cluster.url, "local", credentials=two.who["rita"]) as rita:
        his, hers = await rita.app(two.apps["bob"].id), await rita.app(two.apps["alice"].id)
    assert "there is no app" in await refused(two.cluster.home, "logs", his.id, *two.as_user("alice"), code=1)

    async def output(app: App, tenant: str) -> bytes:
        question = msgspec.json.encode(LogQuestion(app=app.id, generation=app.generation, slot=0, tail=3))
        pieces = alice.bus.ask(subjects.ask("local", "node-1", "logs", tenant), question)
        async with contextlib.aclosing(pieces) as answer:
            return b"".join([piece async for piece in answer])

    async with await open_client(two.cluster.url, "local", credentials=two.who["alice"]) as alice:
        assert b"line" in await output(hers, "alice")
        with raises(LogRefused, "log.no_permission"):
            await output(his, "bob")
        with raises(LogRefused, "agent.refused"):
            await output(his, "alice")
        with raises(LogRefused, "log.no_permission"):
            await output(his, "")


async def test_following_survives_a_change_of_the_serving_process(two: Two) -> None:
    async with await open_client(two.cluster.url, "local", credentials=two.who["alice"]) as alice:
        end = await alice.log.end()
        following = alice.log.read(after=0, follow=True)
        seen = [record.seq async for record in _upto(following, end)]
        assert seen == list(range(1, end + 1))
        # What it publishes itself comes back as it was said.
        await alice.update(HERS, weight=2.0)
        async for batch in following:
            own = [one for one in batch if subjects.who_of(one.subject) == "alice"]
            if own:
                assert subjects.kind_of(own[0].subject) == "AppUpdated"
                break
        await following.aclose()


async def _upto(following: Any, end: int) -> AsyncIterator[Any]:
    async for batch in following:
        for record in batch:
            yield record
        if batch[-1].seq >= end:
            return


async def test_files_are_their_tenants(two: Two) -> None:
    """Outputs, checkpoints and containers' own folders: copied by the owner, and by no one else, whatever they
    request."""
    home, his = two.cluster.home, two.apps["bob"]
    (two.folder / "mine.txt").write_text(CANARY)
    said = await done(home, "cp", str(two.folder / "mine.txt"), f"{HIS}:runs/", *two.as_user("bob"))
    assert "copied 1 file" in said
    await done(home, "cp", f"{HIS}:runs", str(two.folder / "back"), *two.as_user("bob"))
    assert (two.folder / "back" / "mine.txt").read_text() == CANARY
    assert "progress.jsonl" in await done(home, "cp", "--list", f"{HIS}/0:work", *two.as_user("bob"))
    assert "reported no checkpoint" in await done(home, "checkpoints", HIS, *two.as_user("bob"))
    assert "there is no app" in await refused(home, "cp", f"{HIS}:runs", ".", *two.as_user("alice"), code=1)
    stranger = await open_client(two.cluster.url, "local", credentials=two.who["alice"])
    reader = await open_client(two.cluster.url, "local", credentials=two.who["rita"])
    async with stranger as alice, reader as rita:
        place = Place(his.id, "outputs", "runs/mine.txt")
        asked = [(FILES, encode(ListFiles(place))), (PUT, encode(WriteBlock(place, "a" * 32, 0, b"x")))]
        for what, question in asked:
            for who, tenant in ((alice, "bob"), (rita, "bob"), (rita, "rita"), (alice, "")):
                pieces = who.bus.ask(subjects.ask("local", "node-1", what, tenant), question)
                with pytest.raises((LogRefused, LogUnavailable)):
                    await anext(pieces)
            pieces = alice.bus.ask(subjects.ask("local", "node-1", what, "alice"), question)
            answer = answer_decoder.decode(await anext(pieces))
            assert isinstance(answer, Refusal)
            assert answer.code == "files.app_unknown"
            await pieces.aclose()


async def test_a_user_with_endless_requests_delays_no_other(two: Two) -> None:
    """Bob asks for the whole log again and again, opens more answers than he may, and takes none of them."""
    async with (
        await open_client(two.cluster.url, "local", credentials=two.who["bob"]) as bob,
        await open_client(two.cluster.url, "local", credentials=two.who["alice"]) as alice,
    ):
        question = msgspec.json.encode(ViewQuestion(what="read", follow=True))
        client = bob._connection._link.client  # type: ignore[union-attr]
        for number in range(300):
            await client.publish(subjects.view("local", "bob"), question, reply=f"{two.who['bob'].inbox}.{number}")
        await client.flush()
        for _ in range(5):
            async with asyncio.timeout(10):
                assert (await alice.state()).apps[two.apps["alice"].id].name == HERS
