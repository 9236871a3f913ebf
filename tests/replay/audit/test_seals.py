"""Sealed logs that were changed: every way is found, and where."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.chain import MARK_EVERY, SealKey, new_seed
from events.codec import decode, encode
from events.kinds import LogSealed, Round
from events.log.memory import MemoryLog
from replay.audit.seal_checks import Damage, Expected, SealCheck, SealError, SealReport, verify_seals
from tests.errors import raises
from tests.master.sealed import SealedLog, sealed_log
from tests.replay.made_log import changed_fact, log_of, renumbered, rounds_with
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from events.log.records import Record

replace = msgspec.structs.replace
SOUND = sealed_log()
RECORDS = SOUND.records
SEALS = rounds_with(RECORDS, LogSealed)
UPTO = [seal.upto for seal in (decode(RECORDS[seq - 1]).events[0] for seq in SEALS)]  # type: ignore[attr-defined]
LAST = UPTO[-1]
"""What comes after it is not sealed."""


async def report_of(records: Sequence[Record], *keys: str, expected: Expected | None = None) -> SealReport:
    return await verify_seals(log_of(records), keys=keys, expected=expected)


async def damage_in(records: Sequence[Record], *keys: str) -> Damage:
    report = await report_of(records, *keys)
    assert report.damage is not None
    assert not report.good
    return report.damage


async def test_a_sound_log() -> None:
    report = await report_of(RECORDS)
    assert report.good
    assert (report.seals, report.sealed_upto, report.end) == (len(SEALS), LAST, len(RECORDS))
    assert report.unsealed == len(RECORDS) - LAST
    assert [(use.key, use.seals, use.first, use.last) for use in report.keys] == [
        (SOUND.key.public, len(SEALS), SEALS[0], SEALS[-1])
    ]
    assert not report.keys_given
    assert (await report_of(RECORDS, SOUND.key.public)).keys_given


async def test_a_log_without_seals_is_reported() -> None:
    log = SealedLog()
    log.say(10)
    report = await report_of(log.records)
    assert (report.good, report.seals, report.sealed_upto, report.unsealed) == (True, 0, 0, 11)


def flipped(record: Record) -> Record:
    body = bytearray(record.body)
    body[-1] ^= 1
    return replace(record, body=bytes(body))


CHANGES: dict[str, Callable[[Record], Record]] = {
    "a byte of the body": flipped,
    "the body": lambda record: replace(record, body=b""),
    "the time": lambda record: replace(record, time=record.time + 1),
    "the subject": lambda record: replace(record, subject=record.subject + "x"),
    "the id": lambda record: replace(record, msg_id="another"),
    "where the id begins": lambda record: replace(record, subject=record.subject + record.msg_id, msg_id=""),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("seq", [2, 64, 65, 150, UPTO[0], 300, 500, LAST])
async def test_a_changed_record_is_found_between_two_marks(what: str, seq: int) -> None:
    damage = await damage_in([*RECORDS[: seq - 1], CHANGES[what](RECORDS[seq - 1]), *RECORDS[seq:]])
    assert damage.first <= seq <= damage.last
    assert damage.last - damage.first < MARK_EVERY
    assert damage.seal == next(seal for seal, upto in zip(SEALS, UPTO, strict=True) if upto >= seq)


WAYS: dict[str, Callable[[list[Record], int], list[Record]]] = {
    "removed": lambda records, at: records[:at] + records[at + 1 :],
    "removed, many": lambda records, at: records[:at] + records[at + 30 :],
    "swapped": lambda records, at: [*records[:at], records[at + 1], records[at], *records[at + 2 :]],
    "inserted": lambda records, at: [*records[:at], replace(records[at], msg_id="new"), *records[at:]],
    "repeated": lambda records, at: [*records[:at], records[at], *records[at:]],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1, 70, 230, 480, 660])
async def test_removed_added_and_moved_records_are_found_even_if_renumbered(way: str, at: int) -> None:
    other = WAYS[way](list(RECORDS), at)
    damage = await damage_in(other)
    assert damage.first == damage.last == at + 1 + (way in ("inserted", "repeated"))
    assert "not contiguous" in damage.what
    damage = await damage_in(renumbered(other))
    assert damage.first <= at + 1 <= damage.last + 1
    assert damage.last - damage.first < MARK_EVERY
    assert damage.seal


async def test_a_removed_seal_is_found_by_the_next_one() -> None:
    seq = SEALS[1]
    damage = await damage_in(renumbered([*RECORDS[: seq - 1], *RECORDS[seq:]]))
    assert damage.first <= seq <= damage.last
    assert damage.seal == SEALS[2] - 1


async def test_all_records_between_two_seals_removed() -> None:
    other = renumbered([*RECORDS[: SEALS[0]], *RECORDS[SEALS[1] - 1 :]])
    damage = await damage_in(other)
    assert damage.seal == SEALS[0] + 1
    assert "removed" in damage.what
    assert damage.first <= SEALS[0] + 1


async def test_a_cut_tail() -> None:
    """The audit reports that the tail is not sealed; only a kept copy of the chain shows that it is gone."""
    report = await report_of(RECORDS[:LAST])
    assert report.good
    assert report.sealed_upto == UPTO[-2]
    assert report.unsealed == LAST - UPTO[-2]
    whole = await report_of(RECORDS)
    kept = Expected.parse(f"{whole.end}:{whole.chain}")
    assert (await report_of(RECORDS, expected=kept)).expected_seq == len(RECORDS)
    cut = await report_of(RECORDS[:LAST], expected=kept)
    assert cut.damage == Damage(
        LAST + 1, len(RECORDS), 0, f"these records are missing: the log ends at sequence {LAST}"
    )


async def test_a_changed_unsealed_tail_contradicts_only_the_expectation() -> None:
    whole = await report_of(RECORDS)
    other = [*RECORDS[:-1], flipped(RECORDS[-1])]
    assert (await report_of(other)).good
    report = await report_of(other, expected=Expected(whole.end, whole.chain))
    assert report.damage is not None
    assert (report.damage.first, report.damage.last) == (LAST + 1, len(RECORDS))
    longer = SealedLog()
    longer.say(5)
    assert not (await report_of(longer.records, expected=Expected(3, whole.chain))).good


@pytest.mark.parametrize("text", ["", "12", "12:", "x:" + "0" * 64, "12:" + "g" * 64])
def test_impossible_expectations(text: str) -> None:
    with raises(SealError, "seal.malformed"):
        Expected.parse(text)


FIELDS = ["upto", "chain", "key", "signature", "after", "every", "marks"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("seq", [SEALS[0], SEALS[-1]])
async def test_a_seal_with_another_field(field: str, seq: int) -> None:
    def change(seal: LogSealed) -> LogSealed:
        values = {
            "upto": seal.upto - 1,
            "chain": "0" * 64,
            "key": SealKey(new_seed()).public,
            "signature": "0" * 128,
            "after": seal.after + 1,
            "every": 2 * seal.every,
            "marks": "",
        }
        return replace(seal, **{field: values[field]})

    damage = await damage_in(changed_fact(RECORDS, seq, LogSealed, change))
    assert (damage.first, damage.last, damage.seal) == (seq, seq, seq)
    assert "not signed" in damage.what


async def test_an_unreadable_seal() -> None:
    for seq in SEALS:
        record = RECORDS[seq - 1]
        other = [*RECORDS[: seq - 1], replace(record, body=record.body[:-3]), *RECORDS[seq:]]
        damage = await damage_in(other)
        assert (damage.first, damage.last) == (seq, seq)


def resealed(records: Sequence[Record], key: SealKey, *, announced: bool) -> list[Record]:
    """Everything again, signed with another key."""
    log = SealedLog(key if announced else SOUND.key)
    log.key = key
    if not announced:
        log._sealer._key = key
    for record in records[1:]:
        event = decode(record)
        if isinstance(event, Round) and isinstance(event.events[0], LogSealed):
            log.seal()
        else:
            log.store(record.subject, record.body, record.msg_id)
    return log.records


async def test_a_log_sealed_again_with_another_key() -> None:
    """A log that was changed as a whole is only detected with the known key."""
    other = SealKey(new_seed())
    records = resealed(RECORDS, other, announced=True)
    assert (await report_of(records)).good
    assert [use.key for use in (await report_of(records)).keys] == [other.public]
    damage = await damage_in(records, SOUND.key.public)
    assert "by another key" in damage.what
    damage = await damage_in(resealed(RECORDS, other, announced=False))
    assert f"the master of epoch 1 has {SOUND.key.public}" in damage.what


async def test_a_seal_of_another_cluster_or_epoch_does_not_count() -> None:
    def moved(record: Record) -> Record:
        return replace(record, subject=record.subject.replace("sealed", "other"))

    assert "not signed" in (await damage_in([*map(moved, RECORDS)])).what
    seq = SEALS[-1]
    event = decode(RECORDS[seq - 1])
    assert isinstance(event, Round)
    other = replace(RECORDS[seq - 1], body=encode(replace(event, epoch=2)))
    assert "not signed" in (await damage_in([*RECORDS[: seq - 1], other, *RECORDS[seq:]])).what


async def test_two_masters_with_keys_of_their_own_after_one_another() -> None:
    log = sealed_log(2, 70)
    first, second = log.key, SealKey(new_seed())
    log.elect(second)
    log.say(100)
    log.seal()
    log.elect(first)
    log.say(10)
    log.seal()
    report = await report_of(log.records, first.public, second.public)
    assert report.good
    assert [(use.key, use.seals) for use in report.keys] == [(first.public, 3), (second.public, 1)]
    assert not (await report_of(log.records, first.public)).good


async def test_a_seal_that_is_much_too_late_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.audit.seal_checks.MOST_BETWEEN", 10)
    log = SealedLog()
    log.say(3)
    log.seal(late=20)
    assert (await report_of(log.records)).passed_over == 1
    log.seal()
    report = await report_of(log.records)
    assert (report.seals, report.passed_over, report.good) == (1, 1, True)


async def test_the_first_seal_of_a_long_log_has_wider_marks() -> None:
    log = SealedLog()
    log.say(300 * MARK_EVERY)
    seal = log.seal()
    assert (seal.every, len(seal.marks) // 16) == (2 * MARK_EVERY, 150)
    assert (await report_of(log.records)).good
    damage = await damage_in([*log.records[:9999], flipped(log.records[9999]), *log.records[10_000:]])
    assert damage.first <= 10_000 <= damage.last < damage.first + 2 * MARK_EVERY


async def test_a_part_of_a_log_is_checked_from_where_its_chain_is_known() -> None:
    cut = 300
    before = SealCheck()
    for record in RECORDS[:cut]:
        before.take(record)
    chain = before.report().chain

    def rest(records: Sequence[Record], value: str) -> SealReport:
        check = SealCheck(start=cut, chain=value)
        for record in records:
            check.take(record)
        return check.report()

    report = rest(RECORDS[cut:], chain)
    assert (report.good, report.start, report.seals) == (True, cut, 3)
    assert not rest([RECORDS[cut], flipped(RECORDS[cut + 1]), *RECORDS[cut + 2 :]], chain).good
    assert not rest(RECORDS[cut:], "00" * 32).good


class Part(MemoryLog):
    """A log that says it begins later, and has no snapshots."""

    async def start(self) -> int:
        return 7


async def test_a_part_of_a_log_with_an_unknown_chain_cannot_be_checked() -> None:
    report = await verify_seals(Part(time.time_ns))
    assert not report.good
    assert "unknown" in report.unknown


class Anonymized(MemoryLog):
    """A log in which names were replaced."""

    anonymized = True


async def test_an_anonymized_log_can_not_be_checked_and_is_not_called_damaged() -> None:
    report = await verify_seals(Anonymized(time.time_ns, RECORDS))
    assert (report.good, report.damage) == (False, None)
    assert "its names were replaced" in report.unknown


@settings(max_examples=tries(8, 60), deadline=None)
@given(st.data())
async def test_every_change_of_sealed_records_is_found(data: st.DataObject) -> None:
    """Any record replaced, removed, added or moved, with new numbers, changes the verdict and is found where it is."""
    at = data.draw(st.integers(1, LAST - 3), "index")
    way = data.draw(st.sampled_from([*WAYS, *CHANGES]), "way")
    if way in WAYS:
        other = renumbered(WAYS[way](list(RECORDS), at))
    else:
        other = [*RECORDS[:at], CHANGES[way](RECORDS[at]), *RECORDS[at + 1 :]]
    check = SealCheck()
    ended = [record.seq for record in other if check.take(record)]
    damage = check.report().damage
    # Records that are cut out at the end leave nothing behind that is wrong: only a shorter log.
    if damage is None:
        assert way.startswith("removed")
        assert check.report().sealed_upto <= at
        return
    assert ended
    # A repeated record is in its place; only its copy, one further on, is not.
    assert damage.first <= at + 1 + (way == "repeated")
    assert damage.last >= at


def test_a_check_reports_where_it_stopped() -> None:
    assert str(Damage(3, 3, 5, "gone")) == "sequence 3: gone"
    assert str(Damage(3, 9, 11, "gone")) == "between sequence 3 and 9: gone"
