"""A limited number of a group's apps have a place at once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dorm.core.asking import problem_of
from dorm.core.gates import CODE
from dorm.core.query.sweep_rows import best_first, sweep_row, sweeps, swept_rows
from dorm.core.state import App, digest
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench
from tests.tries import tries


def submit(
    bench: Bench, count: int, parallel: int, *, group: str = "lr", tenant: str = "", first: int = 0, **more: Any
) -> None:
    for index in range(first, count):
        of = {"name": group, "index": index, "count": count, "parallel": parallel}
        id = f"{tenant}//{group}.{index}" if tenant else ""
        bench.submit(f"{group}-{index:04}", id=id, group=of, n_max=1, **more)


def placed(bench: Bench, tenant: str = "") -> list[str]:
    return [app.name for app in bench.state.live_apps() if app.current is not None and tenant in (app.tenant, "")]


def reasons(bench: Bench) -> dict[str, str]:
    return {app.name: app.waiting.code for app in bench.state.live_apps() if app.waiting is not None}


def end(bench: Bench, name: str) -> None:
    bench.started(name)
    bench.all_exited(name)
    bench.settle()


def test_the_others_wait_without_a_share_until_one_ends() -> None:
    bench = Bench(a=8)
    submit(bench, 5, 2)
    bench.decide()
    assert reasons(bench) == {f"lr-{index:04}": CODE for index in (2, 3, 4)}, "said at once"
    bench.settle()
    assert placed(bench) == ["lr-0000", "lr-0001"]
    assert [app.id[:7] for app in problem_of(bench.state, bench.now).apps] == ["lr-0000", "lr-0001"]
    assert {app.waiting_since for app in bench.state.live_apps() if app.name >= "lr-0002"} == {0}

    bench.wait(100)
    end(bench, "lr-0001")
    assert placed(bench) == ["lr-0000", "lr-0002"]
    assert set(reasons(bench)) == {"lr-0003", "lr-0004"}
    assert bench.decide(allocate=True) == []


def test_patience_counts_from_an_apps_turn_in_its_group() -> None:
    bench = Bench(a=1)
    submit(bench, 2, 1)
    bench.submit("other", n_max=1)
    bench.settle()
    bench.wait(1000)
    end(bench, "lr-0000")
    other, second = bench.app("other"), bench.app("lr-0001")
    assert other.current is not None, "it has waited for a thousand seconds, and the other only for its turn"
    assert second.waiting is not None
    assert second.waiting.code != CODE
    assert second.waiting_since == bench.now


def test_stopping_and_pausing_apps_still_count() -> None:
    bench = Bench(a=8)
    submit(bench, 3, 1, retries={"limit": 3, "backoff": "60s"})
    bench.settle()
    bench.started("lr-0000")
    bench.exited("lr-0000", code=1)
    bench.settle()
    assert bench.app("lr-0000").phase == "retrying"
    assert placed(bench) == []
    bench.wait(61)
    bench.settle()
    assert placed(bench) == ["lr-0000"]

    bench.started("lr-0000")
    bench.add(k.AppCancelRequested(app="lr-0000"))
    bench.settle()
    assert bench.app("lr-0000").ended
    assert placed(bench) == [], "its container has not exited yet"
    bench.all_exited("lr-0000")
    bench.settle()
    assert placed(bench) == ["lr-0001"]


def test_waiting_apps_are_cancelled_without_a_trace() -> None:
    bench = Bench(a=8)
    submit(bench, 4, 1)
    bench.settle()
    for index in (3, 2, 1):
        bench.add(k.AppCancelRequested(app=f"lr-{index:04}"))
    bench.settle()
    assert placed(bench) == ["lr-0000"]
    end(bench, "lr-0000")
    assert {app.ended for app in bench.state.apps.values()} == {"completed", "cancelled"}


def test_one_with_a_closed_gate_takes_no_turn_and_all_open_at_once_within_the_limit() -> None:
    bench = Bench(a=8)
    submit(bench, 4, 2, start_after="60s")
    bench.submit("lr-0004", group={"name": "lr", "index": 4, "count": 5, "parallel": 2}, n_max=1)
    bench.settle()
    assert placed(bench) == ["lr-0004"]
    bench.wait(61)  # Nothing is on the log between.
    bench.settle()
    assert placed(bench) == ["lr-0000", "lr-0004"]
    assert reasons(bench) == {f"lr-{index:04}": CODE for index in (1, 2, 3)}


def test_a_held_app_keeps_its_turn() -> None:
    bench = Bench(a=8)
    submit(bench, 3, 1)
    bench.settle()
    bench.started("lr-0000")
    bench.add(k.AppHoldRequested(app=bench.app("lr-0000").id))
    bench.settle()
    bench.all_exited("lr-0000")
    bench.settle()
    assert placed(bench) == []
    bench.add(k.AppReleaseRequested(app=bench.app("lr-0000").id))
    bench.settle()
    assert placed(bench) == ["lr-0000"]


def test_a_stranger_is_in_a_group_of_its_own() -> None:
    bench = Bench(a=8)
    submit(bench, 2, 1, tenant="ann")
    submit(bench, 2, 1, tenant="bob")
    bench.settle()
    assert (placed(bench, "ann"), placed(bench, "bob")) == (["lr-0000"], ["lr-0000"])
    assert sorted(sweeps(bench.state)) == [("ann", "lr"), ("bob", "lr")]


def test_the_least_limit_of_its_live_apps_holds() -> None:
    bench = Bench(a=8)
    submit(bench, 2, 2)
    submit(bench, 3, 1, first=2)
    bench.settle()
    assert placed(bench) == ["lr-0000"]


def test_without_a_limit_a_group_is_only_a_name() -> None:
    bench = Bench(a=2)
    submit(bench, 4, 0)
    bench.settle()
    assert placed(bench) == ["lr-0000", "lr-0001"]
    assert CODE not in reasons(bench).values()


@pytest.mark.parametrize("seed", range(tries(3, 300)))
def test_whatever_happens_the_limit_holds_and_all_get_their_turn(seed: int) -> None:
    """`Bench` asks for all invariants after each record, and the limit is one."""
    chance = Random(seed)
    bench = Bench(a=chance.choice([1, 3, 8]), b=2)
    limits = {"lr": chance.choice([1, 2, 3]), "wd": chance.choice([0, 2])}
    for group, limit in limits.items():
        submit(bench, chance.randint(2, 6), limit, group=group, retries={"limit": 1, "backoff": "2s"})
    for _ in range(40):
        live: list[App] = [app for app in bench.state.live_apps() if not app.cancel_requested]
        if chance.random() < 0.7:
            bench.decide() or bench.decide(allocate=True)
        if live and chance.random() < 0.1:
            bench.add(k.AppCancelRequested(app=chance.choice(live).id))
        for app in [app for app in bench.state.apps.values() if app.current is not None and app.current.released]:
            states = {container.state for container in app.current.containers.values()} if app.current else set()
            if states == {"desired"}:
                bench.started(app.id)
            elif states == {"running"} and chance.random() < 0.4:
                bench.exited(app.id, code=chance.choice([0, 0, 1]))
        bench.wait(chance.random() * 4)
    for _ in range(200):
        bench.settle()
        for app in list(bench.state.apps.values()):
            for number, generation in list(app.generations.items()):
                if generation.released and not generation.ended:
                    states = {container.state for container in generation.containers.values()}
                    if number < app.generation:  # It was asked to stop.
                        bench.all_exited(app.id, 143, generation=number, asked=True)
                    elif states == {"desired"}:
                        bench.started(app.id)
                    else:
                        bench.all_exited(app.id)
        bench.wait(3)
        if not any(bench.state.live_apps()):
            break
    assert not list(bench.state.live_apps()), f"seed {seed}: somebody never gets a turn"


def test_a_log_without_groups_folds_as_before() -> None:
    one, other = Bench(a=2), Bench(a=2)
    for bench in (one, other):
        bench.running("app")
    assert digest(one.state) == digest(other.state)


# --- as people see it ---------------------------------------------------------------------------------------------------


def test_a_sweep_is_a_line_and_a_table() -> None:
    bench = Bench(a=8)
    submit(bench, 4, 2)
    bench.settle()
    for name, loss in (("lr-0000", 0.5), ("lr-0001", 0.25)):
        bench.started(name)
        app = bench.app(name)
        bench.add(k.AppProgressed(app=app.id, generation=1, step=7, loss=loss), "a")
    bench.wait(10)
    end_one = bench.app("lr-0000")
    bench.all_exited("lr-0000")
    bench.settle()
    apps = (
        sweeps(bench.state)["someone", "lr"]
        if ("someone", "lr") in sweeps(bench.state)
        else next(iter(sweeps(bench.state).values()))
    )
    row = sweep_row(apps, bench.now)
    assert (row.name, row.count, row.submitted, row.parallel) == ("lr", 4, 4, 2)
    assert row.phases == {"running": 1, "starting": 1, "waiting": 1, "completed": 1}
    table = swept_rows(apps, bench.now)
    assert [one.index for one in table] == [0, 1, 2, 3]
    assert [one.name for one in best_first(table, "loss")] == ["lr-0001", "lr-0000", "lr-0002", "lr-0003"]
    assert [one.name for one in best_first(table, "container_s")][:2] == ["lr-0000", "lr-0001"]
    assert table[0].container_s == 10.0
    assert end_one.ended_at - end_one.submitted_at == 10 * SECOND


def test_a_waiting_sweep_shows_the_reason() -> None:
    bench = Bench(a=8)
    bench.submit("prep")
    bench.settle()
    submit(bench, 2, 0, after=["prep"])
    bench.settle()
    (apps,) = sweeps(bench.state).values()
    row = sweep_row(apps, bench.now)
    assert (row.phases, row.waits) == ({"waiting": 2}, "waits for prep to complete")
    assert [one.note for one in swept_rows(apps, bench.now)] == ["waits for prep to complete"] * 2
    end(bench, "prep")
    bench.settle()
    assert sweep_row(apps, bench.now).waits == ""


def test_a_name_is_used_again_by_a_later_sweep() -> None:
    bench = Bench(a=8)
    submit(bench, 3, 0)
    bench.settle()
    for index in range(3):
        end(bench, f"lr-{index:04}")
    for index in range(2):
        bench.submit(f"lr-{index:04}", group={"name": "lr", "run": "ab", "index": index, "count": 2}, n_max=1)
    bench.settle()
    (apps,) = sweeps(bench.state).values()
    assert sweep_row(apps, bench.now).count == 2
    assert [app.spec.group.run for app in apps if app.spec.group is not None] == ["ab", "ab"]
