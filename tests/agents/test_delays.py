"""What goes on the log of what a node tries again and again, and when it is given up."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest

from agents import reconcile as r
from agents.delays import FIRST_S, GIVEN_UP_S, LONGEST_S, MOST, Delays, Repeats, Step, Trouble, bound_of, trouble_of
from agents.runtime.interface import Key, Unavailable
from events.spec import Deadlines

KEY, OTHER = Key("app-1", 1, 0), Key("app-1", 1, 1)
FULL = Trouble("create", "No space left on device", "container.folder.not_writable")
PULL = Trouble("pull", "", "container.image.pulling", failing=False)


def test_a_blip_is_no_event() -> None:
    delays = Delays()
    step = delays.failed(KEY, FULL, 10.0)
    assert (step.publish, step.log, step.pause_s) == (False, True, 1.0)
    assert delays.over(KEY) == (None, 1)


def test_what_lasts_is_an_event_once() -> None:
    delays = Delays()
    steps = [delays.failed(KEY, FULL, float(now)) for now in range(100)]
    assert [at for at, step in enumerate(steps) if step.publish] == [int(FIRST_S)]
    assert sum(step.log for step in steps) < 8
    assert delays.over(KEY) == (FULL, 100)


def test_a_try_that_took_long_counts_from_its_begin() -> None:
    step = Delays().failed(KEY, FULL, 40.0, took_s=31.0)
    assert (step.publish, step.lasts_s) == (True, 31.0)


def test_another_reason_is_another_event_but_not_for_ever() -> None:
    delays = Delays()
    steps = [delays.failed(KEY, Trouble("create", f"error {now}", "x"), float(now)) for now in range(100_000)]
    events = [at for at, step in enumerate(steps) if step.publish]
    assert len(events) == MOST
    pauses = [after - before for before, after in pairwise(events)]
    assert pauses == sorted(pauses)
    assert sum(step.log for step in steps) < 1000


def test_containers_are_told_apart() -> None:
    delays = Delays()
    delays.failed(KEY, FULL, 0.0)
    delays.failed(OTHER, FULL, 4.0)
    assert delays.failed(KEY, FULL, 5.0).publish
    assert not delays.failed(OTHER, FULL, 5.0).publish
    assert delays.now(9.0) == [(KEY, FULL, 9.0)]


def test_pauses_grow() -> None:
    delays = Delays()
    pauses = [delays.failed(KEY, FULL, float(now)).pause_s for now in range(0, 300, 10)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S


def test_a_start_is_given_up_at_its_bound() -> None:
    delays = Delays()
    now, steps = 0.0, list[Step]()
    while not steps or not steps[-1].given_up:
        steps.append(delays.failed(KEY, FULL, now, 20.0))
        now += steps[-1].pause_s
    assert sum(step.pause_s for step in steps[:-1]) == pytest.approx(20.0)


def test_a_changed_reason_does_not_start_the_bound_again() -> None:
    delays = Delays()
    other = Trouble("start", "no process left", "container.supervisor.failed")
    steps = [delays.failed(KEY, FULL if now % 2 else other, float(now), 20.0) for now in range(21)]
    assert steps[-1].given_up


def test_what_makes_progress_is_not_given_up_and_starts_the_bound_again() -> None:
    delays = Delays()
    assert not any(delays.failed(KEY, PULL, float(now), 20.0).given_up for now in range(1000))
    assert delays.now(1000.0) == [(KEY, PULL, 1000.0)]
    assert not any(delays.failed(KEY, FULL, 1000.0 + now, 20.0).given_up for now in range(20))
    assert delays.failed(KEY, FULL, 1020.0, 20.0).given_up


def test_without_a_bound_nothing_is_given_up() -> None:
    delays = Delays()
    assert not any(delays.failed(KEY, FULL, float(now)).given_up for now in range(1000))


@pytest.mark.parametrize(("start", "bound"), [("", GIVEN_UP_S), ("20s", 20.0), ("2h", GIVEN_UP_S)])
def test_the_bound_follows_from_the_apps_deadline(start: str, bound: float) -> None:
    assert bound_of(Deadlines(start=start)) == bound


@pytest.mark.parametrize(
    ("error", "doing", "reason", "failing"),
    [
        (Unavailable("create x: bad (500)", doing="create", said="bad (500)"), "create", "bad (500)", True),
        (Unavailable("x is being pulled", code="container.image.pulling"), "pull", "", False),
        (Unavailable("no\nblobs", code="workdir.unreachable"), "fetch", "no blobs", True),
        (Unavailable("full", code="environment.folder.not_writable"), "prepare", "full", True),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "create", "No space left on device: /x", True),
        (ValueError("a bug"), "start", "a bug", True),
    ],
)
def test_errors_say_what_is_delayed(error: Exception, doing: str, reason: str, failing: bool) -> None:
    found = trouble_of(r.Launch(KEY), error)
    assert found is not None
    assert (found.doing, found.reason, found.failing) == (doing, reason, failing)


def test_a_lease_that_is_over_is_no_trouble_of_a_container() -> None:
    assert trouble_of(r.Launch(KEY), Unavailable("it has ended", code="node_lease.expired")) is None


def test_lines_that_repeat_are_logged_at_growing_intervals() -> None:
    repeats = Repeats()
    logged = [now for now in range(3600) if repeats.due("no answer", float(now))]
    assert logged[:4] == [0, 5, 15, 35]
    assert len(logged) < 20
    assert repeats.over("no answer")
    assert not repeats.over("no answer")
    assert repeats.due("no answer", 3600.0)


def test_different_lines_do_not_fill_memory() -> None:
    repeats = Repeats()
    assert all(repeats.due(f"line {number}", 0.0) for number in range(10_000))
    assert len(repeats._of) <= 256
