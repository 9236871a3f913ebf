"""Tampered logs: every change is found, at the right place, and earlier records still pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.snapshot import dump, load
from dorm.core.state import State
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppCompleted,
    AppRejected,
    GenerationFailed,
    GenerationReleased,
    MasterElected,
    NodeLost,
    NodeRecovered,
    Resized,
    Round,
)
from replay import frames
from replay.audit.audit import Report, verify
from tests.replay.made_log import changed, changed_fact, log_of, renumbered, rounds_with
from tests.tries import step

if TYPE_CHECKING:
    from events.log.memory import MemoryLog
    from events.log.records import Record
    from events.spec import AppSpec

replace = msgspec.structs.replace


async def found(records: list[Record], seq: int | None, *words: str) -> Report:
    """The audit's report, which has to have found this at this sequence."""
    report = await verify(log_of(records))
    assert report.divergence is not None
    if seq is not None:
        assert report.divergence.seq == seq
        before = sum(isinstance(decode(record), Round) for record in records[: seq - 1])
        assert report.rounds == before
    for word in words:
        assert word in str(report.divergence)
    return report


def moved(resized: Resized) -> Resized:
    """Its last change that places anything puts its last container elsewhere."""
    index = max(index for index, change in enumerate(resized.changes) if change.placement)
    change = resized.changes[index]
    last = change.placement[-1]
    placement = [*change.placement[:-1], replace(last, node="n1" if last.node == "n0" else "n0")]
    changes = [*resized.changes]
    changes[index] = replace(change, placement=placement)
    return replace(resized, changes=changes)


async def test_a_moved_container(records: list[Record]) -> None:
    for seq in rounds_with(records, Resized):
        if any(change.placement for change in resized_in(records, seq).changes):
            await found(changed_fact(records, seq, Resized, moved), seq, "placement", ".node")


def resized_in(records: list[Record], seq: int) -> Resized:
    event = decode(records[seq - 1])
    assert isinstance(event, Round)
    return next(fact for fact in event.events if isinstance(fact, Resized))


@pytest.mark.parametrize(
    "fields",
    [
        {"digest": "0" * 32},
        {"utilization": 0.123},
        {"fairness_loss": 3.0},
        {"overhead": 77},
        {"bound": -1.0},
        {"reasons": {}},
        {"changes": []},
        {"params": {"theta1": 0.9}},
        {"status": "optimal!"},
    ],
)
async def test_any_field_of_a_decision(written: list[Record], fields: dict[str, Any]) -> None:
    name, value = next(iter(fields.items()))
    for seq in rounds_with(written, Resized):
        if getattr(resized_in(written, seq), name) != value:
            await found(changed_fact(written, seq, Resized, lambda r: replace(r, **fields)), seq, f"Resized[0].{name}")


async def test_an_altered_spec(recorded: list[Record]) -> None:
    def alter(accepted: AppAccepted) -> AppAccepted:
        spec: AppSpec = accepted.spec
        return replace(accepted, spec=replace(spec, command=["rm", "-rf", "/"]))

    for seq in rounds_with(recorded, AppAccepted):
        await found(changed_fact(recorded, seq, AppAccepted, alter), seq, "AppAccepted[0].spec.command", "'rm'")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (AppRejected, {"reason": "because"}),
        (GenerationReleased, {"resume": True}),
        (GenerationReleased, {"stop_s": 0.5}),
        (GenerationFailed, {"counted": True}),
        (GenerationFailed, {"retry_at": 1}),
        (AppCompleted, {"generation": 7}),
        (NodeRecovered, {"node": "n0"}),
        (NodeLost, {"last_heard": 2**62}),
        (MasterElected, {"epoch": 9}),
    ],
)
async def test_any_other_fact(written: list[Record], kind: type, fields: dict[str, Any]) -> None:
    seq = rounds_with(written, kind)[-1]
    await found(changed_fact(written, seq, kind, lambda fact: replace(fact, **fields)), seq)


@pytest.mark.parametrize(
    "fields",
    [{"basis": 0}, {"basis": 10**9}, {"epoch": 9}, {"at": 1}, {"allocated": True}],
)
async def test_a_round_that_states_when_it_was_decided(written: list[Record], fields: dict[str, Any]) -> None:
    seq = rounds_with(written, GenerationReleased)[-1]
    await found(changed(written, seq, lambda event: replace(event, **fields)), seq)


async def test_a_round_with_a_basis_that_no_record_has(written: list[Record]) -> None:
    """No build can read it, so it releases nothing, and the next decision does not follow without it."""
    seq = rounds_with(written, GenerationReleased)[-1]
    following = next(later for later in rounds_with(written, GenerationFailed) if later > seq)
    report = await found(changed(written, seq, lambda event: replace(event, basis=-1)), None, "GenerationReleased")
    assert report.divergence is not None
    assert report.divergence.seq == following
    assert report.not_checked_because == {"this build can't read it": 1}


async def test_a_basis_that_is_possible_but_not_the_right_one(written: list[Record]) -> None:
    """Between the round before and itself, but on another state."""
    tried = 0
    for record in written:
        event = decode(record)
        if isinstance(event, Round) and any(isinstance(fact, Resized) for fact in event.events):
            other = event.basis - 1 if event.basis == record.seq - 1 else event.basis + 1
            report = await verify(log_of(changed(written, record.seq, lambda e, b=other: replace(e, basis=b))))  # type: ignore[misc]
            assert report.divergence is not None
            assert report.divergence.seq == record.seq
            tried += 1
    assert tried >= 3


async def test_a_removed_fact_and_one_too_many(written: list[Record]) -> None:
    seq = next(seq for seq in rounds_with(written, AppAccepted) if len(decode(written[seq - 1]).events) > 1)  # type: ignore[attr-defined]
    await found(changed(written, seq, lambda e: replace(e, events=e.events[:-1])), seq, "facts was recorded as")
    await found(changed(written, seq, lambda e: replace(e, events=[*e.events, e.events[0]])), seq, "facts")
    await found(changed(written, seq, lambda e: replace(e, events=[*reversed(e.events)])), seq)
    await found(changed(written, seq, lambda e: replace(e, events=[])), seq)


async def test_a_removed_record(written: list[Record]) -> None:
    for index in range(0, len(written) - 2, step(15)):
        await found([*written[:index], *written[index + 1 :]], index + 1, "contiguous")


@pytest.mark.soak
async def test_a_removed_record_and_new_numbers_for_the_rest(written: list[Record]) -> None:
    """Every basis after it is then one too large."""
    last_round = rounds_with(written, AppCompleted)[-1]
    for index in range(last_round - 1):
        report = await found(renumbered([*written[:index], *written[index + 1 :]]), None)
        assert report.divergence is not None
        assert report.divergence.seq > index


async def test_a_repeated_record(written: list[Record]) -> None:
    await found([*written[:5], written[4], *written[5:]], 6, "contiguous")
    await found(renumbered([*written[:5], written[4], *written[5:]]), None)


@pytest.mark.soak
async def test_swapped_records(written: list[Record]) -> None:
    for index in range(len(written) - 1):
        swapped = [*written[:index], written[index + 1], written[index], *written[index + 2 :]]
        await found(swapped, index + 1, "contiguous")


async def test_a_round_swapped_with_its_basis(written: list[Record]) -> None:
    for record in written:
        event = decode(record)
        if isinstance(event, Round) and event.basis == record.seq - 1 > 0:
            index = record.seq - 2
            await found(renumbered([*written[:index], written[index + 1], written[index], *written[index + 2 :]]), None)


async def test_a_changed_submission(written: list[Record]) -> None:
    """What a client said is an input; that the answer does not fit it is found at the answer."""

    def alter(event: Any) -> Any:
        return replace(event, spec={**event.spec, "n_max": 3})

    seq = next(record.seq for record in written if ".AppSubmitted." in record.subject)
    answer = rounds_with(written, AppAccepted)[0]
    await found(changed(written, seq, alter), answer, "n_max", "recorded as 4 and replayed as 3")


async def test_a_forged_election(written: list[Record]) -> None:
    for wrong in (0, 1, 3, 9):
        seq = rounds_with(written, MasterElected)[1]
        record = written[seq - 1]
        event = decode(record)
        assert isinstance(event, Round)
        other = replace(event, epoch=wrong, events=[MasterElected(epoch=wrong)])
        records = [*written[: seq - 1], replace(record, body=encode(other)), *written[seq:]]
        report = await verify(log_of(records))
        assert report.divergence is not None
        # An earlier epoch makes the round void; then no elected master wrote the later rounds.
        assert report.divergence.seq >= seq


async def with_snapshot(records: list[Record], seq: int, *, forged: bool, build: str = "") -> MemoryLog:
    """A log with a snapshot after this record, forged or true: one that fits all its own checks."""
    log, state = log_of(records), State()
    for record in records[:seq]:
        evolve(state, record)
    if forged:
        state.nodes.popitem()
    info, body = dump(state, build=build or frames.build())
    assert load(info, body, build=info.build) is not None
    await log.snapshots.put(info, body)
    return log


async def test_a_snapshot_that_is_not_of_the_records(records: list[Record]) -> None:
    for seq in (rounds_with(records, Resized)[0], len(records)):
        report = await verify(await with_snapshot(records, seq, forged=True))
        assert not report.good
        assert report.divergence is not None
        assert report.divergence.seq == seq
        assert "snapshot" in str(report.divergence)
        assert (await verify(await with_snapshot(records, seq, forged=False))).good


async def test_no_build_uses_a_snapshot_of_another_build(records: list[Record]) -> None:
    seq = len(records)
    assert (await verify(await with_snapshot(records, seq, forged=True, build="another"))).good
