"""Audits of correct logs, and of what can't be checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.next_round import Decision, decide
from dorm.core.state import State, digest
from dorm.policies.registry import policy
from events import subjects
from events.codec import decode, document, encode
from events.kinds import AppCancelRequested, IdleTicked, MasterElected, NodeLost, PolicyChanged, Resized, Round
from events.log.memory import MemoryLog
from replay.audit import round_checks as questions
from replay.audit.audit import verify
from tests.replay.made_log import CLUSTER, Story, all_facts, changed_fact, log_of, rounds_with, two_apps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Record
    from replay.audit.audit import Report


def folded(records: list[Record]) -> str:
    state = State()
    for record in records:
        evolve(state, record)
    return digest(state)


async def audited(records: list[Record]) -> Report:
    return await verify(log_of(records))


async def test_a_sound_log_gives_the_same_state_and_decisions(records: list[Record]) -> None:
    report = await audited(records)
    rounds = sum(isinstance(decode(record), Round) for record in records)
    assert report.divergence is None
    assert report.good
    assert (report.events, report.end, report.rounds) == (len(records), len(records), rounds)
    assert (report.not_checked, report.void) == (0, 0)
    assert report.decisions_checked + report.conclusions_checked == rounds
    assert report.decisions_checked >= 8
    assert report.digest == folded(records)


async def test_the_recorded_log_is_worth_an_audit(recorded: list[Record], written: list[Record]) -> None:
    """Both have decisions, and in one of them a record lies between a basis and its round."""
    assert len(rounds_with(recorded, Resized)) >= 4
    assert rounds_with(written, NodeLost)
    assert len(rounds_with(written, MasterElected)) == 2
    lags = [r.seq - 1 - event.basis for r in written if isinstance(event := decode(r), Round)]
    assert max(lags) >= 1


@pytest.mark.soak
async def test_a_log_cut_anywhere_verifies_up_to_there(written: list[Record], recorded: list[Record]) -> None:
    for records in (written, recorded[:40]):
        for end in range(len(records) + 1):
            report = await audited(records[:end])
            assert report.divergence is None
            assert report.events == end
            assert report.digest == folded(records[:end])


async def test_an_audit_ends_at_the_end_of_the_log_at_its_start(written: list[Record]) -> None:
    end = len(written)

    class Growing(MemoryLog):
        """Every read is followed by an append."""

        async def read(
            self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
        ) -> AsyncGenerator[list[Record], None]:
            await self.append("dorm.story.AppUpdated.me", b"whatever")
            async for batch in super().read(after=after, subjects=subjects, follow=follow):
                yield batch

    log = Growing(time.time_ns, written)
    report = await verify(log)
    assert report.good
    assert (report.events, report.end) == (end, end)
    assert await log.end() == end + 1


async def test_a_void_round_is_counted_and_changes_nothing() -> None:
    story = Story()
    story.submit("one")
    story.decide()
    story.elect()
    story.decide(allocate=True)
    story.round([NodeLost(node="n0", last_heard=1)], epoch=1)
    story.settle()
    report = await audited(story.records)
    assert report.divergence is None
    assert report.void == 1
    assert story.state.nodes["n0"].condition == "up"


def by_another(change: Any) -> list[Record]:
    """A short log whose one decision is as another build would have written it."""
    story = Story()
    story.submit("one")
    story.decide()
    story.decide(allocate=True)
    seq = rounds_with(story.records, Resized)[0]
    return changed_fact(story.records, seq, Resized, change)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"solver": "scipy 0.0.1"}, "another solver decided it (scipy 0.0.1"),
        ({"policy_version": 999}, "another version of policy 'dorm'"),
        ({"status": "guard"}, "time guard"),
    ],
)
async def test_rounds_that_cannot_be_decided_again_count_as_not_checked(fields: dict[str, Any], why: str) -> None:
    report = await audited(by_another(lambda resized: msgspec.structs.replace(resized, **fields)))
    assert report.divergence is None
    assert report.not_checked == 1
    assert sum(report.not_checked_because.values()) == 1
    assert why in next(iter(report.not_checked_because))
    assert report.decisions_checked + report.conclusions_checked + report.not_checked == report.rounds


@pytest.mark.parametrize("fields", [{"digest": "0" * 32}, {"policy": "static"}])
async def test_a_round_of_another_solver_must_still_match_the_state(fields: dict[str, Any]) -> None:
    report = await audited(by_another(lambda resized: msgspec.structs.replace(resized, status="guard", **fields)))
    assert report.divergence is not None
    assert [next(iter(fields)) in d.path for d in report.divergence.differences] == [True]


def with_a_tick() -> list[Record]:
    story = Story()
    story.say(PolicyChanged(idle_s=1))
    story.submit("one")
    story.settle()
    for _ in range(12):
        story.say(AppCancelRequested(app="nobody"))
    story.settle()
    return story.records


async def test_an_idle_tick_is_decided_again() -> None:
    records = with_a_tick()
    assert rounds_with(records, IdleTicked)
    report = await audited(records)
    assert report.good
    assert report.not_checked == 0
    assert report.decisions_checked + report.conclusions_checked == report.rounds


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"solver": "scipy 0.0.1"}, True),
        ({"status": "guard"}, True),
        ({"status": "node_limit"}, False),
        ({"solver": "scipy 0.0.1", "digest": "0" * 32}, False),
    ],
)
async def test_a_tick_that_can_not_be_decided_again_is_not_checked(fields: dict[str, str], good: bool) -> None:
    records = with_a_tick()
    seq = rounds_with(records, IdleTicked)[-1]
    report = await audited(changed_fact(records, seq, IdleTicked, lambda tick: msgspec.structs.replace(tick, **fields)))
    assert (report.good, report.not_checked) == (good, 1 if good else 0)


async def test_an_unknown_policy_can_not_be_in_force_here() -> None:
    """The fold refuses a policy that this build doesn't have, so a decision by one was made on another state."""
    report = await audited(by_another(lambda resized: msgspec.structs.replace(resized, policy="best")))
    assert report.divergence is not None
    assert "'best'" in str(report.divergence)


async def test_a_round_of_a_later_build_is_not_checked() -> None:
    story = two_apps()
    seq = rounds_with(story.records, Resized)[-1]
    record = story.records[seq - 1]
    body = {**document(record), "mood": "good"}
    later = msgspec.structs.replace(record, body=msgspec.msgpack.encode(body))
    report = await audited([*story.records[: seq - 1], later, *story.records[seq:]])
    assert report.divergence is None
    assert report.not_checked == 1
    assert "another build" in next(iter(report.not_checked_because))


async def test_an_unreadable_round_is_not_checked() -> None:
    story = Story()
    story.store(subjects.rounds(CLUSTER), b"\xc1")
    story.submit("one")
    story.settle()
    report = await audited(story.records)
    assert report.divergence is None
    assert report.not_checked == 1


async def test_a_round_on_an_unfenced_subject_is_ignored() -> None:
    story = Story()
    forged = Round(epoch=1, basis=3, allocated=False, events=[NodeLost(node="n0", last_heard=1)])
    story.store(subjects.fact(CLUSTER, "Round", "mallory"), encode(forged))
    assert story.state.nodes["n0"].condition == "up"
    assert story.state.counters.unreadable == 1
    report = await audited(story.records)
    assert report.good
    assert report.rounds == 1


async def test_both_policies_are_audited() -> None:
    story = Story()
    story.say(PolicyChanged(policy="static", params={"count": 2}))
    story.submit("one")
    story.submit("two")
    story.settle()
    assert {resized.policy for resized in all_facts(story.records, Resized)} == {"static"}
    report = await audited(story.records)
    assert report.divergence is None
    assert report.not_checked == 0


async def test_a_guard_that_fires_here_is_not_a_divergence(
    written: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = policy("dorm").allocate

    def slow(problem: Any, params: Any) -> Any:
        return msgspec.structs.replace(allocate(problem, params), status="guard")

    monkeypatch.setattr(policy("dorm"), "allocate", slow)
    report = await audited(written)
    assert report.divergence is None
    assert report.not_checked == len(rounds_with(written, Resized))


async def test_a_core_that_raises_is_a_divergence(written: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Any, params: Any) -> Any:
        raise ZeroDivisionError("no nodes")

    monkeypatch.setattr(policy("dorm"), "allocate", broken)
    report = await audited(written)
    assert report.divergence is not None
    assert "ZeroDivisionError: no nodes" in str(report.divergence)


async def test_an_audit_that_changes_the_state_is_found(written: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding must not touch the state; an audit whose second fold ends elsewhere than its first says so."""
    last_digest = rounds_with(written, Resized)[-1]

    def careless(state: State, at: int, *, allocate: bool) -> Decision:
        if state.seq > last_digest:
            state.counters.ignored += 1
        return decide(state, at, allocate=allocate)

    monkeypatch.setattr(questions, "decide", careless)
    report = await audited(written)
    assert report.divergence is not None
    assert "two folds" in str(report.divergence)


async def test_an_empty_log_is_whole() -> None:
    report = await audited([])
    assert report.good
    assert (report.events, report.rounds) == (0, 0)


async def test_progress_covers_both_passes_over_the_log(written: list[Record]) -> None:
    told: list[tuple[int, int]] = []
    await verify(log_of(written), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (2 * len(written), 2 * len(written))


def test_the_encoding_equals_that_of_masters(recorded: list[Record]) -> None:
    """An audit compares bytes, so what is read and written again has to be the same bytes."""
    for record in recorded:
        event = decode(record)
        if isinstance(event, Round):
            assert encode(event) == record.body
