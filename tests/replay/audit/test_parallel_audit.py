"""An audit cut into slices, in one process and in several: the same report for any damage."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from dorm.core.evolve import evolve
from dorm.core.snapshot import copy
from dorm.core.state import State, digest
from events.codec import decode
from events.kinds import AppCancelRequested, AppProgressed, GenerationReleased, Resized
from events.log.stores import content_of
from replay.audit import passes as surveying
from replay.audit import workers
from replay.audit.audit import verify
from replay.audit.passes import Slice, Survey, check
from replay.audit.workers import AuditError
from tests.errors import raises
from tests.replay.made_log import Story, changed, changed_fact, log_of, rounds_with

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.audit.audit import Report

replace = msgspec.structs.replace
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "ALLOCATIONS", 2)
    monkeypatch.setattr(surveying, "RECORDS", 9)
    monkeypatch.setattr(workers, "WORTH_S", 0.0)


async def audited(records: list[Record], jobs: int = 1) -> Report:
    return await verify(log_of(records), jobs=jobs)


def slices_of(records: list[Record]) -> list[Slice]:
    survey = Survey(State())
    for record in records:
        if survey.take(record):
            break
    survey.finish()
    return [*survey.ready]


def test_slices_are_the_log_and_no_question_is_open_between_them(records: list[Record]) -> None:
    slices = slices_of(records)
    assert len(slices) > 3
    assert [record for part in slices for record in part.records] == records
    after = 0
    for part in slices:
        assert part.after == after
        assert all(part.after <= asked.basis < asked.seq <= part.upto for asked in part.questions)
        after = part.upto


def test_a_slice_starts_and_ends_in_the_states_of_the_whole_log(written: list[Record]) -> None:
    slices, state = slices_of(written), State()
    for part in slices:
        assert part.state == copy(state).encoded
        for record in part.records:
            evolve(state, record)
        assert part.content == content_of(copy(state).encoded)
        made = check(part)
        assert (made.upto, made.divergence) == (part.upto, None)
        wrong = check(msgspec.structs.replace(part, content="0" * 64))
        assert wrong.divergence is not None
        assert "two folds" in wrong.divergence.what
        assert wrong.digest == digest(state)


async def test_any_cut_of_the_log_gives_the_same_report(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    cut = await audited(records)
    monkeypatch.setattr(surveying, "ALLOCATIONS", 10**6)
    monkeypatch.setattr(surveying, "RECORDS", 10**6)
    assert len(slices_of(records)) == 1
    assert await audited(records) == cut


def lies(written: list[Record]) -> list[list[Record]]:
    """Another decision, an impossible round, and a gap."""
    return [
        changed_fact(written, rounds_with(written, Resized)[-1], Resized, lambda r: replace(r, utilization=0.5)),
        changed(written, rounds_with(written, GenerationReleased)[-1], lambda e: replace(e, basis=0)),
        [*written[:30], *written[31:]],
    ]


@pytest.mark.soak
@pytest.mark.slow
async def test_the_same_report_by_one_process_and_by_several(written: list[Record]) -> None:
    told: list[tuple[int, int]] = []
    several = await verify(log_of(written), jobs=2, progress=lambda done, total: told.append((done, total)))
    assert several == await audited(written)
    assert several.good
    assert told == sorted(told)
    assert told[-1] == (2 * len(written), 2 * len(written))
    for lie in lies(written):
        one, several = await audited(lie), await audited(lie, jobs=2)
        assert one.divergence is not None
        assert one == several


async def test_the_containers_that_a_repeated_decision_gives(written: list[Record]) -> None:
    seq = next(
        seq
        for seq in rounds_with(written, Resized)
        for fact in decode(written[seq - 1]).events  # type: ignore[attr-defined]  # a round
        if isinstance(fact, Resized) and any(change.placement for change in fact.changes)
    )
    report = await audited(changed_fact(written, seq, Resized, lambda r: replace(r, changes=[])))
    assert report.divergence is not None
    (app,) = report.divergence.apps
    assert (app.before, app.recorded) == ({}, {})
    assert sum(app.again.values()) > 0


def quiet_story() -> list[Record]:
    """Long stretches without any round, and a round that was decided some records before it was written."""
    story = Story()
    story.submit("one")
    story.settle()
    app = story.state.names["one"]
    for step in range(50):
        story.say(AppProgressed(app=app, generation=1, step=step))
    story.submit("two")

    def noise() -> None:
        for _ in range(12):
            story.say(AppCancelRequested(app="nobody"))

    story.decide(meanwhile=noise)
    story.settle()
    return story.records


async def test_a_log_without_rounds_is_cut_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    records = quiet_story()
    whole = await audited(records)
    assert whole.good
    for most in (7, 10, 20):
        monkeypatch.setattr(surveying, "MOST_RECORDS", most)
        slices = slices_of(records)
        assert [record for part in slices for record in part.records] == records
        assert max(len(part.records) for part in slices) <= 2 * most + surveying.RECORDS
        report = await audited(records)
        assert report.good
        if most < 12:
            # More records came between a basis and its round than are kept.
            assert report.not_checked == 1 or report == whole
        else:
            assert report == whole


async def workers_of_this_process(count: int) -> list[psutil.Process]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [
                child
                for child in psutil.Process().children()
                if any("replay.audit.workers" in word for word in _words(child))
            ]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_nothing_is_left_of_an_audit_that_is_stopped(written: list[Record]) -> None:
    audit = asyncio.create_task(audited(written, jobs=2))
    started = await workers_of_this_process(1)
    audit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await audit
    assert not any(worker.is_running() for worker in started)


async def test_a_killed_process_is_an_error_and_not_a_verdict(written: list[Record]) -> None:
    audit = asyncio.create_task(audited(written, jobs=2))
    for worker in await workers_of_this_process(1):
        os.kill(worker.pid, signal.SIGKILL)
    with raises(AuditError, "audit.process_ended") as ended:
        await audit
    assert "SIGKILL" in str(ended.value)
