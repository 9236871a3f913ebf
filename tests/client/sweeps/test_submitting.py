"""A sweep is submitted once, even after interruptions; a real master answers on a log in memory."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from dorm.client.client import Client
from dorm.client.errors import NoAnswer, NotFound, Refused
from dorm.client.sweeps import Outcome, find_sweep, free_name, is_sweep, submit
from dorm.core.query.sweep_rows import sweeps
from events import kinds as k
from events import subjects
from events.chain import SealKey, new_seed
from events.codec import decode, encode
from events.log.memory import MemoryBus, MemoryLog
from events.spec.sweeps import Sweep, expanded
from tests.core.records import document, joined
from tests.errors import raises
from tests.master.test_master_seals import CLUSTER, leading

if TYPE_CHECKING:
    from events.kinds import Event


async def cluster(*, users: bool = True) -> tuple[MemoryLog, SealKey]:
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())

    async def by(who: str, event: Event) -> None:
        await log.append(subjects.fact(CLUSTER, type(event).__name__, who), encode(event))

    if users:
        await by("root", k.TrustEnabled(masters=[key.public], nodes=["n1"]))
        for name, role in (("ann", "user"), ("bob", "user"), ("op", "operator")):
            await by("root", k.UserAdded(name=name, role=role))  # type: ignore[arg-type]
    await by("op", k.PolicyChanged(quiet_ms=10, quiet_limit_ms=20))
    await by("n1", joined("n1"))
    return log, key


def client(log: MemoryLog, user: str = "ann") -> Client:
    return Client(log, MemoryBus(time.time_ns), CLUSTER, user=user)


def array(count: int, name: str = "lr", **fields: Any) -> Sweep:
    return expanded(document(name, array=count, n_max=1, **fields))


def submissions(log: MemoryLog) -> list[str]:
    return [event.id for event in map(decode, log.records) if isinstance(event, k.AppSubmitted)]


async def test_interrupted_work_is_continued() -> None:
    log, key = await cluster()
    sweep = array(60, parallel=2)
    async with leading(log, "m1", key):
        begun = asyncio.Event()
        task = asyncio.create_task(submit(client(log), sweep, answered=lambda done: begun.set() if done > 1 else None))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 1 < len(submissions(log)) <= 60
        # From another machine, and twice at once.
        outcomes = await asyncio.gather(submit(client(log), sweep), submit(client(log), array(60, parallel=2)))
        assert all(outcome.new + outcome.before == 60 for outcome in outcomes)
        state = await client(log).state()
        assert len(find_sweep(state, "lr", "ann")) == len(state.apps) == 60
        assert len([app for app in state.apps.values() if app.current is not None]) <= 2
        assert len(submissions(log)) == 60, "nothing is on the log twice"
        again = await submit(client(log), sweep)
        assert (again.new, again.before) == (0, 60)


async def test_refused_apps_are_submitted_again() -> None:
    log, key = await cluster()
    big = array(3, demand={"cpu": 8})
    async with leading(log, "m1", key):
        with raises(Refused, "spec.demand.too_large"):
            await submit(client(log), big)
        assert len(submissions(log)) == 1, "the others are not sent"
        await log.append(subjects.fact(CLUSTER, "NodeJoined", "n1"), encode(joined("n1", 16)))
        assert (await submit(client(log), big)).new == 3


async def test_a_stranger_joins_nothing_and_cancels_nothing() -> None:
    log, key = await cluster()
    async with leading(log, "m1", key):
        await submit(client(log), array(4, parallel=1))
        bob = client(log, "bob")
        await submit(bob, array(2, parallel=4))
        state = await bob.state()
        assert sorted(sweeps(state)) == [("ann", "lr"), ("bob", "lr")]
        assert {app.tenant for app in find_sweep(state, "lr", "bob")} == {"bob"}
        with raises(NotFound, "sweep.ambiguous", "ann//lr", "bob//lr"):
            find_sweep(state, "lr", "op")
        theirs = find_sweep(state, "ann//lr", "bob")
        assert len(theirs) == 4
        with raises(Refused, "app.not_owner"):
            await bob.ask(k.AppCancelRequested, app=theirs[0].id, reason="mine")
        # Past the client's checks, in another's name: the subject names the tenant.
        spec = document("lr-0009", group={"name": "lr", "index": 9, "count": 10, "parallel": 1}, user="ann")
        said = k.AppSubmitted(id="ann//mine", by="ann", spec=spec)
        await log.append(subjects.fact(CLUSTER, "AppSubmitted", "bob"), encode(said))
        await bob.submit(document("after"))
        assert len(find_sweep(await bob.state(), "ann//lr", "bob")) == 4


async def test_names_belong_to_one_sweep() -> None:
    log, key = await cluster()
    async with leading(log, "m1", key):
        ann = client(log)
        await ann.submit(document("lr-0001", command=["sleep"]))
        with raises(Refused, "sweep.name.taken", "lr-0001"):
            await submit(ann, array(3))
        await submit(ann, array(1))
        with raises(Refused, "sweep.name.taken"):
            await submit(ann, array(1, weight=2))
        await ann.submit(document("alone"))
        with raises(Refused, "sweep.name.taken", "alone"):
            await submit(ann, array(1, "alone"))
        state = await ann.state()
        assert free_name(state, "ann", "lr", lambda name: "") == "lr-2"
        assert free_name(state, "ann", "lr", lambda name: array(1, name).digest) == "lr"
        assert free_name(state, "ann", "alone", lambda name: "") == "alone-2"
        assert (is_sweep(state, "lr", "ann"), is_sweep(state, "alone", "ann")) == (True, False)
        with raises(NotFound, "sweep.not_found", "did you mean lr?"):
            find_sweep(state, "lrs", "ann")


async def test_a_cancelled_or_completed_sweep_is_not_continued() -> None:
    log, key = await cluster()
    async with leading(log, "m1", key):
        ann = client(log)
        short = Sweep("lr", (sweep := array(3)).specs[:1], sweep.digest)
        await submit(ann, short)
        await ann.cancel("lr-0000")
        await ann.wait("lr-0000")
        with raises(Refused, "sweep.cancelled"):
            await submit(ann, sweep)
        with raises(Refused, "sweep.over"):
            await submit(ann, short)


async def test_a_sweep_that_is_being_cancelled_is_not_continued() -> None:
    """The requests are on the log, and no master has answered them yet."""
    log, key = await cluster()
    ann, sweep = client(log), array(2)
    async with leading(log, "m1", key):
        await submit(ann, sweep)
    await ann.cancel("lr-0000")
    assert await submit(ann, sweep) == Outcome(new=0, before=2), "the other app goes on"
    await ann.cancel("lr-0001")
    with raises(Refused, "sweep.cancelled"):
        await submit(ann, sweep)


async def test_without_a_master_it_gives_up_and_the_same_call_continues() -> None:
    log, key = await cluster(users=False)
    with raises(NoAnswer, "master.no_answer"):
        await submit(client(log), array(5), answer_s=0.1)
    assert len(submissions(log)) == 1
    async with leading(log, "m1", key):
        outcome = await submit(client(log), array(5))
        assert outcome.new + outcome.before == 5
    assert len(submissions(log)) == 5


async def test_a_cancelled_sweep_is_submitted_no_further() -> None:
    log, key = await cluster()
    async with leading(log, "m1", key):
        ann, done = client(log), asyncio.Event()
        task = asyncio.create_task(submit(ann, array(400), answered=lambda count: done.set() if count > 1 else None))
        await done.wait()
        await client(log).cancel("lr-0000")
        with raises(Refused, "sweep.cancelled"):
            await task
