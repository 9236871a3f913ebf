"""The state at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import GapError, evolve
from dorm.core.state import State, digest
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError
from replay.travel import state_at
from tests.errors import raises
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record


async def test_the_state_at_every_sequence_is_that_of_the_fold(records: list[Record]) -> None:
    log = log_of(records)
    folded = State()
    assert digest(await state_at(log, AtSequence(0))) == digest(folded)
    for record in records:
        evolve(folded, record)
        assert digest(await state_at(log, AtSequence(record.seq))) == digest(folded)
    assert digest(await state_at(log)) == digest(folded)


async def test_a_time_is_after_its_last_record(written: list[Record]) -> None:
    log = log_of(written)
    for record in written:
        assert (await state_at(log, AtTime(record.time))).seq == record.seq
        assert (await state_at(log, AtTime(record.time - 1))).seq == record.seq - 1
    assert (await state_at(log, AtTime(0))).seq == 0
    assert (await state_at(log, AtTime(written[-1].time + 10**18))).seq == len(written)


async def test_time_before_the_end_counts_from_the_last_record(written: list[Record]) -> None:
    log = log_of(written)
    span = written[-1].time - written[9].time
    assert (await state_at(log, BeforeEnd(span))).seq == 10
    assert (await state_at(log, BeforeEnd(0))).seq == len(written)
    assert (await state_at(log, BeforeEnd(10**19))).seq == 0
    assert (await state_at(log_of([]), BeforeEnd(1))).seq == 0


async def test_a_clock_that_went_back_does_not_split_the_log(written: list[Record]) -> None:
    """A server's clock may go back; what was stored later is later all the same."""
    back = [*written[:9], msgspec.structs.replace(written[9], time=written[0].time), *written[10:]]
    log = log_of(back)
    assert (await state_at(log, AtTime(written[8].time))).seq == 10
    assert (await state_at(log, AtTime(written[8].time - 1))).seq == 8


async def test_the_log_has_to_reach_the_moment(written: list[Record]) -> None:
    with raises(MomentError, "moment.after_end"):
        await state_at(log_of(written), AtSequence(len(written) + 1))


async def test_a_gap_is_never_folded_over(written: list[Record]) -> None:
    log = log_of([*written[:5], *written[6:]])
    with pytest.raises(GapError):
        await state_at(log)
    assert (await state_at(log, AtSequence(5))).seq == 5


async def test_progress_is_in_the_story(written: list[Record]) -> None:
    told: list[tuple[int, int]] = []
    await state_at(log_of(written), AtSequence(20), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (20, 20)
