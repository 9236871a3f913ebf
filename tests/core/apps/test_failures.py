"""Retries by cause: what counts against which limit, when counting starts over, and how the pauses grow."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.query.views import app_row
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench


def fails(bench: Bench, code: int | None = 1, **how: Any) -> k.GenerationFailed | k.AppFailed:
    """The app's first container ends, and the master says what of it; then the pause passes and it is released again."""
    bench.exited(code=code, **how)
    (said, *_) = bench.decide()
    assert isinstance(said, k.GenerationFailed | k.AppFailed)
    bench.settle()
    if isinstance(said, k.GenerationFailed):
        bench.wait((said.retry_at - bench.now) / SECOND)
        bench.settle()
        bench.started()
        bench.settle()
    return said


OUT_OF_MEMORY: dict[str, Any] = {"code": None, "reason": "out_of_memory"}


def test_a_cause_with_its_own_limit_does_not_use_up_other_retries() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 1, "out_of_memory": 2})
    said = [fails(bench, **OUT_OF_MEMORY), fails(bench, 3), fails(bench, **OUT_OF_MEMORY)]
    counts = [(one.failure, one.retries, one.limit) for one in said if isinstance(one, k.GenerationFailed)]
    assert counts == [("out_of_memory", 1, 2), ("exit", 1, 1), ("out_of_memory", 2, 2)]
    end = fails(bench, **OUT_OF_MEMORY)
    assert isinstance(end, k.AppFailed)
    assert end.reason == "slot 0 on a ran out of memory (2 of 2 retries for out_of_memory used up)"
    assert (end.failure, bench.app().failures) == ("out_of_memory", 3)


def test_a_limit_of_0_fails_at_once() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 9, "image": 0})
    said = fails(bench, None, reason="image", message="no such image")
    assert isinstance(said, k.AppFailed)
    assert said.reason == "slot 0 on a: no such image (no retries for image)"


@pytest.mark.parametrize(
    ("limit", "used_up"), [(0, ""), (1, " (1 of 1 retry used up)"), (2, " (2 of 2 retries used up)")]
)
def test_the_end_states_the_number_of_retries(limit: int, used_up: str) -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": limit})
    *earlier, end = [fails(bench) for _ in range(limit + 1)]
    assert all(isinstance(one, k.GenerationFailed) for one in earlier)
    assert isinstance(end, k.AppFailed)
    assert end.reason == f"slot 0 on a ended with exit code 1{used_up}"
    assert end.exit_codes == {"0": 1}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": 128}, " ended with exit code 128"),
        ({"code": 129}, " ended with exit code 129 (killed by signal 1)"),
        ({"code": 159}, " ended with exit code 159 (killed by signal 31)"),
        ({"code": 160}, " ended with exit code 160"),
        ({"code": 137, "message": "boom"}, " ended with exit code 137 (killed by signal 9): boom"),
        ({"code": None, "reason": "command"}, ": command"),
        ({"code": None, "reason": "command", "message": "no such program"}, ": no such program"),
        ({"code": 137, "reason": "out_of_memory"}, " ran out of memory"),
    ],
)
def test_how_it_ended_in_words(how: dict[str, Any], words: str) -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 9, "command": 9})
    assert fails(bench, **how).reason == f"slot 0 on a{words}"


@pytest.mark.parametrize("cause", ["command", "spec"])
def test_failures_that_no_retry_fixes_are_final(cause: str) -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 9})
    said = fails(bench, None, reason=cause, message="/nope: No such file or directory")
    assert isinstance(said, k.AppFailed)
    assert said.reason == "slot 0 on a: /nope: No such file or directory (a retry would end in the same way)"


@pytest.mark.parametrize(
    ("how", "pause"),
    [
        ({"code": None, "reason": "image"}, 10),
        ({"code": None, "reason": "command"}, 10),
        ({"code": 127}, 10),
        ({"code": 126}, 10),
        ({"code": 1}, 1),
    ],
)
def test_failures_that_a_retry_rarely_fixes_are_retried_slowly(how: dict[str, Any], pause: float) -> None:
    """The app has worked before, so another node may have what this one lacks."""
    bench = Bench(a=4)
    app = bench.running(n_max=1, retries={"limit": 9})
    bench.add(k.AppProgressed(app=app.id, generation=1, step=1), "a")
    pauses = []
    for _ in range(3):
        bench.exited(**how)
        (said,) = [fact for fact in bench.settle() if isinstance(fact, k.GenerationFailed)]
        pauses.append((said.retry_at - bench.now) / SECOND)
        bench.wait(pauses[-1])
        bench.settle()
        bench.started()
        bench.settle()
    assert pauses == [pause, 2 * pause, 4 * pause]


def test_an_early_end_of_another_is_named() -> None:
    bench = Bench(a=4)
    bench.running(n_min=3, n_max=3, retries={"limit": 9})
    bench.exited(slot=1)
    bench.wait(2)
    assert app_row(bench.app(), bench.now).note == "slot 1 on a has ended (exit code 0), and 2 of 3 still run"
    bench.exited(slot=0, code=1)
    (said,) = [fact for fact in bench.settle() if isinstance(fact, k.GenerationFailed)]
    assert said.reason == "slot 0 on a ended with exit code 1; slot 1 on a had ended with exit code 0 2.0 s before"


LOST_PEER: dict[str, Any] = {"code": 1, "message": "RuntimeError: Connection closed by peer", "peer_lost": True}
NOTICED_S = 17
"""With the default settings: `node_grace` and the master's margin."""


def loses_its_peer(**fields: Any) -> Bench:
    """An app of three, on two nodes, whose first container ends because it has lost another one, which still runs."""
    bench = Bench(a=2, b=1)
    bench.running(n_min=3, n_max=3, **{"retries": {"limit": 2, "fatal_exit_codes": [3]}, **fields})
    bench.exited(slot=0, **LOST_PEER)
    assert bench.settle() == [], "the end of another may explain it"
    return bench


def failed(bench: Bench) -> k.GenerationFailed | k.AppFailed:
    (said,) = bench.decide()
    assert isinstance(said, k.GenerationFailed | k.AppFailed)
    return said


def test_a_container_that_lost_its_peer_is_not_the_cause() -> None:
    bench = loses_its_peer()
    bench.wait(2)
    bench.exited(slot=1, **LOST_PEER)
    assert bench.settle() == []
    bench.wait(2)
    bench.exited(slot=2, code=1, message="ValueError: label 17")
    assert failed(bench).reason == "slot 2 on b ended with exit code 1: ValueError: label 17"


def test_the_cause_decides_whether_the_failure_is_final() -> None:
    bench = loses_its_peer()
    bench.exited(slot=2, code=3)
    said = failed(bench)
    assert isinstance(said, k.AppFailed)
    assert said.reason == "slot 2 on b ended with exit code 3 (exit code 3 is final)"


def test_the_cause_is_awaited_until_the_silence_of_a_node_would_have_been_noticed() -> None:
    bench = loses_its_peer()
    assert next_deadline(bench.state, bench.now) == bench.now + NOTICED_S * SECOND, "the master wakes up by itself"
    bench.wait(NOTICED_S)
    assert failed(bench).reason == (
        "slot 0 on a ended with exit code 1: RuntimeError: Connection closed by peer; slot 1 on a (or one of 1 more) has not "
        "ended, and may be what it lost"
    )


def test_a_container_whose_peer_was_lost_with_its_node_costs_no_retry() -> None:
    bench = loses_its_peer()
    bench.wait(NOTICED_S - 1)
    bench.conclude(b=NOTICED_S - 1)
    said = failed(bench)
    assert isinstance(said, k.GenerationFailed)
    assert (said.failure, said.counted) == ("lost", False)
    assert said.reason.startswith("slot 2 on b is silent with its node, and others lost it: slot 0 on a ended")


def test_if_all_have_lost_a_peer_the_first_counts_at_once() -> None:
    bench = loses_its_peer()
    for slot in (2, 1):
        bench.wait(1)
        bench.exited(slot=slot, **LOST_PEER)
    assert failed(bench).reason == "slot 0 on a ended with exit code 1: RuntimeError: Connection closed by peer"


def test_nothing_is_resized_while_a_cause_is_awaited() -> None:
    bench = loses_its_peer()
    bench.submit("other", n_max=1)
    assert not [fact for fact in bench.settle() if isinstance(fact, k.Resized) and fact.changes]
    assert bench.app().generation == 1


def test_the_end_of_an_app_is_not_put_off_by_an_awaited_cause() -> None:
    bench = loses_its_peer()
    bench.add(k.AppCancelRequested(app="app"))
    assert [type(fact) for fact in bench.decide()] == [k.AppCancelled]
    assert next_deadline(bench.state, bench.now) is None


@pytest.mark.parametrize(("code", "ends"), [(2, True), (78, True), (1, False), (137, False)])
def test_exit_codes_that_are_final(code: int, ends: bool) -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 9, "fatal_exit_codes": [2, 78]})
    said = fails(bench, code)
    assert isinstance(said, k.AppFailed) == ends
    if ends:
        assert said.reason == f"slot 0 on a ended with exit code {code} (exit code {code} is final)"


def test_a_week_of_hiccups_is_survived_and_a_crash_loop_is_not() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 2, "reset": "1h"})
    for _ in range(12):
        bench.wait(2 * 3600)
        said = fails(bench)
        assert isinstance(said, k.GenerationFailed)
        assert (said.retries, said.retry_at - bench.now) == (1, 0)  # `fails` has waited it out.
    assert bench.app().failures == 12
    bench.wait(60)
    assert isinstance(fails(bench), k.GenerationFailed)
    bench.wait(60)
    assert isinstance(fails(bench), k.AppFailed)


def test_stable_running_adds_up_over_adjustments_and_lost_nodes() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=1, retries={"limit": 1, "reset": "1h"})
    fails(bench)
    assert app.retries_used == {"limit": 1}
    for _ in range(3):
        bench.wait(1300)
        said = fails(bench, None, reason="lost")
        assert isinstance(said, k.GenerationFailed)
        assert not said.counted
    assert app.retries_used == {}
    assert isinstance(fails(bench), k.GenerationFailed)


def test_waiting_does_not_count_as_stable_running() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=1, retries={"limit": 1, "reset": "1h"})
    fails(bench)
    bench.exited(code=143, asked=True)
    bench.decide()
    bench.wait(7200)
    bench.settle()
    bench.started()
    said = fails(bench)
    assert isinstance(said, k.AppFailed)
    assert app.ended == "failed"


def test_lost_nodes_cost_no_retry_and_lengthen_the_pause() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 0, "backoff": "2s", "longest": "9s"})
    pauses = []
    for _ in range(4):
        bench.exited(code=None, reason="lost")
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        pauses.append((said.retry_at - bench.now) / SECOND)
        bench.wait(pauses[-1])
        bench.settle()
        bench.started()
    assert pauses == [2, 4, 8, 9]


def test_the_room_of_a_pausing_app_is_free_for_others() -> None:
    bench = Bench(a=4)
    bench.running("crashing", n_min=4, n_max=4, retries={"limit": 9, "backoff": "60s"})
    bench.submit("other", n_min=2, n_max=2)
    bench.settle()
    assert bench.app("other").generation == 0
    bench.exited("crashing", 0, 1)
    bench.all_exited("crashing", 143, asked=True)
    bench.settle()
    assert bench.app("crashing").phase == "retrying"
    assert bench.app("other").generations[1].released


def test_killed_containers_are_counted_and_reported() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=3)
    bench.add(k.AppUpdated(app="app", n_max=2))
    bench.settle()
    bench.exited(slot=0, code=143, asked=True, generation=1)
    bench.exited(slot=1, code=137, asked=True, killed=True, generation=1)
    bench.exited(slot=2, code=137, asked=True, killed=True, generation=1)
    (said,) = bench.decide()
    assert isinstance(said, k.GenerationReleased)
    assert (said.killed, app.history[-1].killed) == (2, 2)


def test_an_app_that_asks_for_no_pause_pauses_longer_and_longer() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 1000, "backoff": 0, "longest": 0})
    pauses = []
    for _ in range(9):
        failed_at = bench.now
        bench.exited(code=1)
        (said, *_) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        bench.settle()
        pauses.append((said.retry_at - failed_at) / SECOND)
        bench.wait(pauses[-1])
        bench.settle()
        bench.started()
        bench.settle()
    assert pauses == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
