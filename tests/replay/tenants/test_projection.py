"""A tenant's view of any log folds to the tenant's part of the state, and contains nothing about others."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.snapshot import copy, restore
from dorm.core.state import State
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.memory import MemoryLog
from events.log.records import Record
from replay.moments import AtSequence
from replay.story.app_teller import AppTeller
from replay.story.explanation import Witness, explain
from replay.story.story import follow
from replay.tenants.hiding import SHOWN
from replay.tenants.log import TenantLog
from replay.tenants.projection import WITHHELD, Projection, key_of
from replay.tenants.shared_views import Views
from replay.tenants.showing import Showing
from tests.core.records import document
from tests.replay.made_log import CLUSTER, log_of
from tests.replay.tenants.lives import BOB, CANARY, CARL, Life
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = key_of(b"a secret of the masters")


class Viewed:
    """A log, its projection for one tenant, and the fold of that."""

    def __init__(self, records: Sequence[Record], tenant: str) -> None:
        self.projection = Projection(State(), KEY)
        self.tenant = tenant
        self.records: list[Record] = []
        self.state = State()
        for record in records:
            made = self.projection.take(record).record_for(tenant)
            self.records.append(made)
            evolve(self.state, made)

    def own(self, state: State) -> list[Any]:
        """The tenant's apps, and what else is its own."""
        apps = [app for app in state.apps.values() if app.tenant == self.tenant]
        waiting = [one for one in state.submissions.values() if one.tenant == self.tenant]
        return [apps, waiting, {key: app for key, app in state.names.items() if app in {one.id for one in apps}}]

    def expected(self) -> list[Any]:
        showing = Showing(self.projection.names, self.tenant)
        apps, waiting, names = self.own(self.projection.state)
        return [[showing._app(app) for app in apps], waiting, names]

    def renamed(self, text: str) -> str:
        """A text of the log, with the pseudonyms of others."""
        names, state = self.projection.names, self.projection.state
        for app in state.apps.values():
            if app.tenant != self.tenant:
                text = text.replace(app.id, names.app(app)).replace(app.name, names.app_name(app.name, app.tenant))
        assert state.known is not None
        for user in sorted(state.known.users, key=len, reverse=True):
            if state.known.tenant_of(user) != self.tenant:
                text = re.sub(rf"\b{re.escape(user)}\b", names.user(user), text)
        return text


def said(records: Sequence[Record]) -> bytes:
    return b"\n".join(msgspec.msgpack.encode(record) for record in records)


@pytest.mark.parametrize("seed", range(tries(2, 300)))
def test_a_view_folds_to_the_tenants_own_data_and_names_no_other_tenant(seed: int) -> None:
    life = Life(seed).play(30)
    assert CANARY.encode() in said(life.records)
    view = Viewed(life.records, "alice")
    assert [(one.seq, one.time) for one in view.records] == [(one.seq, one.time) for one in life.records]
    assert CANARY.encode() not in said(view.records).lower()
    assert view.own(view.state) == view.expected()
    # What everybody shares, and the counts that explain a share, are the same.
    assert shared(view.state) == shared(life.state)
    # A reader that starts from a state continues with the same records.
    middle = len(life.records) // 2
    begun = Viewed(life.records[:middle], "alice").projection.state_for("alice")
    encoded = copy(begun)
    assert CANARY.encode() not in encoded.encoded.lower()
    state = restore(encoded)
    for record in view.records[middle:]:
        evolve(state, record)
    assert view.own(state) == view.own(view.state)
    assert shared(state) == shared(life.state)


@pytest.mark.parametrize("seed", range(tries(1, 100)))
def test_a_refusal_does_not_reveal_the_owner(seed: int) -> None:
    life = Life(seed).play(30)
    view = Viewed(life.records, BOB)
    others = [one for one in view.records if subjects.who_of(one.subject) != BOB]
    assert b"alice" not in said(others)
    assert b"amy" not in said(others)
    assert view.own(view.state) == view.expected()


def shared(state: State) -> list[Any]:
    apps = [
        (app.seq, app.phase, app.n_min, app.n_max, app.weight, sorted(app.demand.values()), app.waiting and app.waiting.code,
         [(one.number, one.by_node()) for one in app.generations.values()])
        for app in state.apps.values()
    ]  # fmt: skip
    nodes = [
        (
            one.id,
            one.condition,
            one.draining,
            one.capacity,
            one.labels,
            one.identity,
            one.shown,
            one.relapses,
            one.suspect and (one.suspect.since, one.suspect.probe_at, one.suspect.failed_probes, len(one.suspect.apps)),
        )
        for one in state.nodes.values()
    ]
    return [apps, nodes, state.figures, state.settings.policy, state.epoch, state.leader]


@pytest.mark.parametrize("seed", range(tries(1, 50)))
async def test_stories_and_explanations_agree_with_the_log(seed: int) -> None:
    life = Life(seed, nodes=2, hostile=False).play(25)
    view = Viewed(life.records, "alice")
    apps = [app for app in life.state.apps.values() if app.tenant == "alice"]
    assert apps
    for app in apps[:3]:
        assert await told(view.records, app.id) == view.renamed(await told(life.records, app.id))


async def told(records: Sequence[Record], app: str) -> str:
    witness, teller = Witness(app), AppTeller(app)
    state = await follow(log_of(records), app, [witness, teller], AtSequence(records[-1].seq))
    parts = [explain(state, witness, state.time), teller.totals(state), teller.story()]
    # A digest is that of the log's state, and maps are in the order of names.
    text = re.sub(r'"digest":"[^"]*"', "", msgspec.json.encode(parts).decode())
    return re.sub(r'"shortage":{([^}]*)}', lambda found: ",".join(sorted(found[1].split(","))), text)


def test_two_tenants_together_learn_nothing_about_a_third() -> None:
    """The pseudonyms of a third one are the same to all; those of themselves say nothing."""
    life = Life(7).play(20)
    alices, bobs = Viewed(life.records, "alice"), Viewed(life.records, BOB)
    carls = [app for app in life.state.apps.values() if app.tenant == CARL]
    for app in carls:
        assert alices.projection.names.app(app) == bobs.projection.names.app(app)
    assert CARL.encode() not in said(alices.records) + said(bobs.records)


def test_another_key_gives_other_pseudonyms() -> None:
    life = Life(3).play(5)
    app = Projection(life.state, KEY).names.app_name("train", BOB)
    assert app != Projection(life.state, key_of(b"another")).names.app_name("train", BOB)
    assert app != Projection(life.state, KEY).names.app_name("train", "alice")


def test_hidden_records_exist_and_reveal_nothing() -> None:
    life = Life(1)
    life.by(BOB, k.UserAdded(name=f"{CANARY}-friend", role="admin"))
    life.store(f"dorm.story.AppSubmitted.{BOB}", b"\xc1" + CANARY.encode())
    life.by(CARL, k.WebhookSet(webhook=CANARY, url=f"https://{CANARY}", events=[], key=CANARY))
    view = Viewed(life.records, "alice")
    for record in view.records[-3:]:
        assert subjects.kind_of(record.subject) == WITHHELD
        assert (record.body, record.msg_id) == (b"\x80", "")
        assert isinstance(decode(record), k.Unknown)
    # Their author's tenant sees them as they are.
    assert Viewed(life.records, BOB).records[-3:-1] == life.records[-3:-1]


def test_a_new_kind_is_withheld_until_it_has_a_rule() -> None:
    hidden = {one.__name__ for one in k.Published.__args__} - {one.__name__ for one in SHOWN}
    assert hidden == {
        "NodeReported", "TokenAdded", "TokenRemoved", "WebhookSet", "WebhookRemoved", "WebhookTestRequested", "WebhookTested",
        "WebhookDisabled", "AppWaitsLong", "RotationRequested", "RotationFailed", "LogRotated", "ProgressLinesSkipped",
        "ContainerDelayed", "SessionStarted", "SessionEnded", "AppNoted",
    }  # fmt: skip


# --- the views of a log that grows --------------------------------------------------------------------------------------


async def test_a_log_that_grows_is_followed_from_anywhere() -> None:
    life = Life(5).play(15)
    expected = Viewed(life.records, "alice").records
    log = MemoryLog(lambda: life.now)
    log.records[:] = life.records[:-20]
    views = Views(log, KEY)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(views.run())
        mine = TenantLog(log, views, "alice")
        assert await mine.end() == len(life.records) - 20
        following = tasks.create_task(take(mine, 3, len(expected)))
        async with contextlib.aclosing(mine.read(after=0)) as batches:
            assert [one async for batch in batches for one in batch] == expected[:-20]
        infos = await mine.snapshots.infos()
        found = await mine.snapshots.fetch(infos[-1])
        assert found is not None
        assert found[0].seq == len(life.records) - 20
        for record in life.records[-20:]:
            await log.append(record.subject, record.body, msg_id=record.msg_id)
        got = await asyncio.wait_for(following, 20)
        assert [(one.seq, one.subject) for one in got] == [(one.seq, one.subject) for one in expected[3:]]
        running.cancel()


async def take(log: TenantLog, after: int, upto: int) -> list[Record]:
    got: list[Record] = []
    async with contextlib.aclosing(log.read(after=after, follow=True)) as batches:
        async for batch in batches:
            got += batch
            if got[-1].seq >= upto:
                break
    return got


def test_an_allow_list_names_no_other_tenant() -> None:
    """Of a node's volumes everybody sees the names, and of those for whom they are only oneself."""
    offers = k.NodeOffers({"data": k.VolumeOffer(tenants=["vision", "nlp"]), "all": k.VolumeOffer()})
    projection = Projection(State(), key_of(b"secret"))
    event = k.NodeJoined(node="n1", address="a", capacity={"cpu": 1000}, ports=(20000, 20999), offers=offers)
    seen = projection.take(Record(1, 1, subjects.fact("c", "NodeJoined", "n1"), encode(event)))
    for tenant, own in (("vision", ["vision"]), ("nlp", ["nlp"]), ("other", [])):
        told = decode(seen.record_for(tenant))
        state = projection.state_for(tenant)
        assert isinstance(told, k.NodeJoined)
        for found in (told.offers, state.nodes["n1"].offers):
            assert isinstance(found, k.NodeOffers)
            assert sorted(found.volumes) == ["all", "data"]
            tenants = found.volumes["data"].tenants
            assert [name for name in tenants if name in ("vision", "nlp")] == own
            assert len(tenants) == 2


class Suspicion(Life):
    """Apps of two tenants failed on a node, which is suspect."""

    def __init__(self) -> None:
        super().__init__(1, nodes=3, hostile=False)
        self.by("alice", k.AppSubmitted(spec=document("plain-one", n_max=1)))
        self.by(BOB, k.AppSubmitted(spec=document(f"{CANARY}-two", n_max=1, secrets={"T": f"{CANARY}-secret"})))
        self.settle()
        self.apps = [next(app for app in self.state.apps.values() if app.tenant == who) for who in ("alice", BOB)]
        self.node = "n0"
        failed = [
            k.GenerationFailed(
                app=app.id, generation=app.generation, reason=f"{why}; it is tried elsewhere", counted=False,
                failure="command", retry_at=self.now, node=self.node, fault="open",
            )
            for app, why in zip(self.apps, ("plain no such file", f"{CANARY} text"), strict=True)
        ]  # fmt: skip
        self.round(failed)
        self.round(
            [
                k.NodeSuspected(
                    node=self.node, reason="2 different apps failed there", apps=[app.id for app in self.apps],
                    failures=["plain no such file", f"{CANARY} text"], least=2, probe_at=self.now,
                )
            ]
        )  # fmt: skip


def suspected(view: Viewed) -> k.NodeSuspected:
    rounds = [decode(one) for one in view.records if subjects.kind_of(one.subject) == "Round"]
    (found,) = (fact for one in rounds for fact in one.events if isinstance(fact, k.NodeSuspected))  # type: ignore[attr-defined]
    return found


def test_a_suspect_node_reveals_no_other_tenants_app_or_failure() -> None:
    life = Suspicion()
    mine, other = life.apps
    assert CANARY.encode() in said(life.records)
    view = Viewed(life.records, "alice")
    names = view.projection.names
    assert CANARY.encode() not in said(view.records).lower()
    fact = suspected(view)
    assert (fact.apps, fact.failures) == ([mine.id, names.app(other)], ["plain no such file", "(withheld)"])
    assert fact.reason == "2 different apps failed there"
    assert view.own(view.state) == view.expected()
    assert shared(view.state) == shared(life.state)
    # The same in a state that a view begins with.
    begun = restore(copy(view.projection.state_for("alice")))
    assert CANARY.encode() not in copy(begun).encoded.lower()
    for state in (view.state, begun):
        node = state.nodes[life.node]
        assert node.suspect is not None
        assert (node.suspect.apps, node.suspect.failures) == (fact.apps, fact.failures)
        assert list(node.failed) == fact.apps
        assert node.failed[mine.id] == life.state.nodes[life.node].failed[mine.id]
    assert begun.nodes == view.state.nodes
    assert begun.apps == view.state.apps
    # A tenant without any of these apps sees that the node is suspect.
    strangers = suspected(Viewed(life.records, CARL))
    assert strangers.apps == [names.app(mine), names.app(other)]
    assert strangers.failures == ["(withheld)", "(withheld)"]


async def test_the_story_of_an_app_on_a_suspect_node_is_the_same_for_its_tenant() -> None:
    life = Suspicion()
    life.by(CARL, k.NodeTrustRequested(node=life.node, reason="for all to know"))
    view, app = Viewed(life.records, "alice"), life.apps[0]
    story = await told(view.records, app.id)
    assert story == view.renamed(await told(life.records, app.id))
    assert "is suspect, because 1 other app failed there as well" in story
    assert "for all to know" in story
    assert view.own(view.state) == view.expected()
    assert view.state.nodes == life.state.nodes


def test_a_node_that_returns_by_a_probe_does_not_name_the_probe_to_others() -> None:
    life = Suspicion()
    life.round([k.NodeTrusted(node=life.node, how="probe", reason=f"{life.apps[1].id} was started there and ran well")])
    view = Viewed(life.records, "alice")
    assert CANARY.encode() not in said(view.records).lower()
    assert view.state.nodes[life.node].suspect is None
    assert view.state.nodes[life.node].relapses == 1


def test_a_nodes_secrets_are_named_to_their_own_tenant_alone() -> None:
    """Everybody may know why a node takes nothing new."""
    life = Life(1)
    why = [k.Unfit("data_bytes", "its data folder is full")]
    offers = k.NodeOffers(secrets={"amy": ["hugs"], BOB: [f"{CANARY}-key"], "unknown": [CANARY]}, tenant=BOB, unfit=why)
    capacity = {"cpu": 1000}
    joined = k.NodeJoined(node="n1", address="a", capacity=capacity, ports=(20000, 20999), identity="x", offers=offers)
    life.store(subjects.fact(CLUSTER, "NodeJoined", "n1"), encode(joined))
    for tenant, secrets in (("alice", {"amy": ["hugs"]}), (BOB, {BOB: [f"{CANARY}-key"]})):
        view = Viewed(life.records, tenant)
        told = decode(view.records[-1])
        assert isinstance(told, k.NodeJoined)
        for found in (told.offers, view.projection.state_for(tenant).nodes["n1"].offers):
            assert isinstance(found, k.NodeOffers)
            assert found.secrets == secrets
            assert found.unfit == why
    assert CANARY.encode() not in Viewed(life.records, "alice").records[-1].body
    stranger = decode(Viewed(life.records, CARL).records[-1])
    assert isinstance(stranger, k.NodeJoined)
    assert stranger.offers is not None
    assert stranger.offers.unfit == why
    assert not stranger.offers.secrets
