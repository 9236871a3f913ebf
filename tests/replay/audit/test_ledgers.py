"""An audit checks the ledgers that live apps report, and no app can make it fail or take long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dorm.elastic import ledger
from events.kinds import EpochCompleted, EpochRun
from replay.audit.audit import verify
from replay.audit.ledgers import MOST_SAMPLES, MOST_WRONG, LedgerCheck, WrongLedger
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from replay.audit.audit import Report


def epoch(number: int, samples: int, digest: str | None = None) -> EpochCompleted:
    right = digest if digest is not None else ledger.expected(samples).digest
    return EpochCompleted(app="a-1", generation=2, epoch=number, step=10 * number, samples=samples, ledger=right)


async def audited(*facts: EpochCompleted) -> Report:
    story = Story()
    for fact in facts:
        story.say(fact, "n0")
    return await verify(log_of(story.records))


async def test_each_ledger_is_compared_with_that_of_every_sample_once() -> None:
    wrong = ledger.expected(99).digest  # One sample was lost.
    report = await audited(epoch(0, 100), epoch(1, 100, wrong), epoch(2, 100, ""))
    assert (report.ledgers.right, report.ledgers.wrong_count, report.ledgers.not_checked) == (1, 1, 0)
    (found,) = report.ledgers.wrong
    assert (found.app, found.generation, found.epoch, found.samples) == ("a-1", 2, 1, 100)
    assert report.good, "an app's own report is no divergence"


async def test_an_app_that_claims_any_number_of_samples_takes_no_time() -> None:
    began = time.process_time()
    report = await audited(*(epoch(number, 2**53 - number, "0" * 64) for number in range(50)))
    assert report.ledgers.not_checked == 50
    assert time.process_time() - began < 10


def test_the_samples_hashed_and_the_ledgers_listed_are_bounded() -> None:
    check = LedgerCheck()
    for number in range(MOST_WRONG + 50):
        check.take(number + 1, epoch(number, 10, "0" * 64))
    check.take(1000, epoch(0, MOST_SAMPLES, "0" * 64))
    report = check.report()
    assert (report.wrong_count, len(report.wrong), report.not_checked) == (MOST_WRONG + 50, MOST_WRONG, 1)
    assert report.wrong[0] == WrongLedger(1, "a-1", 2, 0, 10)


def test_epochs_that_were_reported_together_are_all_checked() -> None:
    check = LedgerCheck()
    right, wrong = ledger.expected(100).digest, ledger.expected(99).digest
    runs = [EpochRun(0, 9, 100, right), EpochRun(10, 11, 100, wrong), EpochRun(12, 12, 100)]
    check.take(7, replace(epoch(13, 100), earlier=runs, omitted=5))
    report = check.report()
    assert (report.right, report.wrong_count, report.not_checked) == (11, 2, 5)
    assert report.wrong == [WrongLedger(7, "a-1", 2, 10, 100)]


def test_an_epoch_that_several_members_report_counts_once() -> None:
    check = LedgerCheck()
    right = ledger.expected(100).digest
    for number in (0, 0, 1, 1, 1):
        check.take(number + 1, epoch(number, 100, right))
    assert (check.report().right, check.report().wrong_count) == (2, 0)
