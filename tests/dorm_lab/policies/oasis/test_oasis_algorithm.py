"""OASiS on whole instances: figures by hand, the dynamic program against every schedule, and invariants of every outcome."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies.problem import Utility
from dorm_lab.policies.oasis.model import worth, worth_in
from dorm_lab.policies.oasis.online import Market, run
from dorm_lab.policies.oasis.prices import Both, Bounds, bounds, rounded
from dorm_lab.policies.oasis.schedule import Offer, best_end, fill, place, place_near, unit_costs
from dorm_lab.policies.oasis.schedule import cheapest as cheapest_units
from tests.dorm_lab.policies.oasis.instances import cluster, instances, job
from tests.policies.problems import slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from dorm_lab.policies.oasis.model import Cluster, Job
    from dorm_lab.policies.oasis.online import Outcome

MANY = settings(slow_machine, max_examples=tries(13, 2000))


# --- the model ----------------------------------------------------------------------------------------------------------


def test_a_job_needs_its_mini_batches_times_their_computation_and_two_transfers() -> None:
    # 3 epochs · 4 chunks · 5 mini-batches · (2 s + 2 · 30 MB / 10 MB/s) = 60 · 8 s
    one = msgspec.structs.replace(
        job("j", 1, 4), epochs=3, mini_batches=5, mini_batch_s=2.0, gradient=30e6, worker_bandwidth=10_000_000
    )
    assert one.work_s == 480.0
    assert one.work(slot_s=100.0) == 5
    assert one.work(slot_s=120.0) == 4
    assert one.fewest_slots(slot_s=100.0) == 2


def test_parameter_servers_follow_from_the_bandwidths() -> None:
    one = job("j", 1, 9, bandwidths=(2, 5))
    assert [one.servers_for(workers) for workers in (0, 1, 2, 3, 5, 6)] == [0, 1, 1, 2, 2, 3]


def test_a_utility_is_a_sigmoid_around_its_target() -> None:
    critical = Utility(worth=10.0, decay=2.0, target_s=5.0)
    assert worth(critical, 5.0) == 5.0
    assert worth(critical, 4.0) == pytest.approx(10 / (1 + math.exp(-2)))
    assert worth(critical, 1e9) == pytest.approx(0.0, abs=1e-300)
    assert worth(Utility(10.0, 0.0, 5.0), 0.0) == worth(Utility(10.0, 0.0, 5.0), 1e9) == 5.0


# --- prices -------------------------------------------------------------------------------------------------------------


def test_prices_rise_from_l_to_u_by_equal_factors() -> None:
    limits = Bounds(np.array([16.0]), 1.0)
    used = np.array([[0.0], [1.0], [2.0], [4.0]])
    assert limits.prices(used, np.array([4.0]))[:, 0].tolist() == pytest.approx([1.0, 2.0, 4.0, 16.0])
    assert limits.alpha == pytest.approx(math.log(16))


def test_the_bounds_of_an_instance_by_hand() -> None:
    # Worth 4 at any time (half of 8).  4 worker-slots on 2 workers; 10 slots; 8 units for workers, 4 for servers.
    one = cluster([4.0, 4.0], [4.0], slots=10)
    limits = bounds(one, [job("j", 4, 2, worker=(2.0,))])
    assert limits.workers.most.tolist() == [4.0 / 2.0]
    eta = 10 * 8 / (4 * 2.0)
    assert limits.workers.least == pytest.approx(4.0 / (4 * eta * 4 * 2.0))
    eta = 10 * 4 / (4 * 1.0)
    assert limits.servers.least == pytest.approx(4.0 / (4 * eta * 4 * 1.0))
    assert limits.ratio == pytest.approx(2 * math.log(4.0 / limits.servers.least))


@MANY
@given(instances())
def test_all_machines_at_lowest_prices_cost_at_most_half_the_value_of_any_job(
    instance: tuple[Cluster, list[Job]],
) -> None:
    """The dual objective before the first job: half of the optimum at most, which the analysis needs."""
    one, jobs = instance
    able = [each for each in jobs if each.arrival + each.fewest_slots(1.0) <= one.slots]
    limits = bounds(one, jobs)
    if not able:
        return
    cost = one.slots * limits.workers.least * sum(map(sum, one.workers))
    cost += one.slots * limits.servers.least * sum(map(sum, one.servers))
    best = [worth_in(each, each.arrival + each.fewest_slots(1.0) - 1, 1.0) for each in able]
    assert cost <= max(best) / 2 * (1 + 1e-9)


# --- one job ------------------------------------------------------------------------------------------------------------


def test_a_job_waits_for_cheap_slots_as_long_as_that_pays() -> None:
    """One machine of 4, prices 1, 2, 4, 8, 16.  Slot 0 is used by 3: one worker there costs 8, in slot 1 it costs 1."""
    one = cluster([4.0], [100.0], slots=2)
    limits = Both(Bounds(np.array([16.0]), 1.0), Bounds(np.array([1e-9]), 1e-9))
    market = Market(one, limits)
    market.workers.used[0, 0, 0] = 3.0
    patient = market.best(job("patient", 1, 1, worth=20.0))
    assert patient is not None
    assert [(use.slot, use.workers) for use in patient.uses] == [(1, {0: 1})]
    assert patient.cost == pytest.approx(1.0)
    assert patient.payoff == pytest.approx(9.0)
    # Worth 20 · 1/(1 + e^-5) = 19.87 in slot 0, and 10 in slot 1.
    hasty = market.best(job("hasty", 1, 1, worth=20.0, decay=5.0, target=1.0))
    assert hasty is not None
    assert [(use.slot, use.workers) for use in hasty.uses] == [(0, {0: 1})]
    assert hasty.payoff == pytest.approx(20 / (1 + math.exp(-5)) - 8.0)


def test_numbers_of_workers_and_servers_vary_by_slot() -> None:
    """Room for 1, 3 and 1 workers in three slots, and 5 worker-slots to do."""
    one = cluster([3.0], [3.0], slots=3)
    market = Market(one, bounds(one, [job("j", 5, 3, bandwidths=(1, 2))]))
    market.workers.used[0, 0, 0] = market.workers.used[2, 0, 0] = 2.0
    best = market.best(job("j", 5, 3, bandwidths=(1, 2)))
    assert best is not None
    assert [use.workers for use in best.uses] == [{0: 1}, {0: 3}, {0: 1}]
    assert [use.servers for use in best.uses] == [{0: 1}, {0: 2}, {0: 1}]


def test_a_job_whose_servers_are_slower_than_its_workers_cannot_run() -> None:
    one = cluster([4.0], [4.0], slots=3)
    slow = job("slow", 1, 1, bandwidths=(2, 1))
    assert run(one, [slow]).refused == ("slow",)


def test_at_equal_prices_containers_stay() -> None:
    assert place(np.array([1.0, 1.0, 0.5]), np.array([2, 2, 1]), 2, had={1}) == {1: 1, 2: 1}
    assert place(rounded(np.array([1.0 + 1e-13, 1.0])), np.array([2, 2]), 2, had=()) == {0: 2}
    assert rounded(np.array([0.0, 1e-300, 3e200, math.inf])).tolist() == pytest.approx([0.0, 1e-300, 3e200, math.inf])
    assert place_near(np.array([1.0, 2.0]), np.array([2, 2]), np.array([0, 1]), 3, had={1}) == {0: 1, 1: 2}


@MANY
@given(st.integers(0, 2**32))
def test_the_best_end_is_found_without_looking_at_every_slot(seed: int) -> None:
    """As by the whole table: end, cost and schedule, whatever the prices and the room, and whether or not the worth falls."""
    chance = np.random.default_rng(seed)
    slots, machines, most = int(chance.integers(2, 9)), int(chance.integers(1, 5)), int(chance.integers(1, 6))
    price = chance.choice([0.0, 0.25, 1.0, 3.0], (slots, machines))
    room = chance.integers(0, 4, (slots, machines))
    work, servers = int(chance.integers(1, 14)), int(chance.integers(0, 2))
    workers = np.maximum(np.arange(most + 1) - servers, 0)
    done = np.tile(workers, (slots, 1))
    done[0] = workers // 2
    costs = unit_costs(Offer(price, room), most)
    costs[:, 1:][:, workers[1:] == 0] = np.inf
    fall = float(chance.choice([0.0, 0.5, 2.0, -1.0]))
    worths = 20.0 - fall * np.arange(slots)
    table = fill(costs, done, work)
    last = int(np.argmax(worths - table.least))
    looked: list[int] = []

    def row(slot: int) -> np.ndarray:
        looked.append(slot)
        order = np.argsort(price[slot], kind="stable")
        found = cheapest_units(price[slot], room[slot], order, most)
        return np.where(np.append([False], workers[1:] == 0), np.inf, found)

    found = best_end(row, done, work, lambda slot: float(worths[slot]), price.min(axis=1), rises=fall < 0)
    if not np.isfinite(table.least[last]):
        assert found is None
        return
    assert found is not None
    assert (found.last, found.cost, found.worth) == (last, table.least[last], worths[last])
    assert found.table.counts(last) == table.counts(last)
    assert looked == list(range(len(looked)))


def test_an_empty_cluster_is_looked_at_no_further_than_needed() -> None:
    looked: list[int] = []

    def row(slot: int) -> np.ndarray:
        looked.append(slot)
        return np.array([0.0, 1.0, 2.0])

    found = best_end(row, np.tile(np.arange(3), (100, 1)), 4, lambda slot: 50.0, np.ones(100))
    assert found is not None
    assert (found.last, found.cost, looked) == (1, 4.0, [0, 1])


@MANY
@given(
    st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, math.inf]), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(1, 8),
)
def test_the_dynamic_program_finds_the_cheapest_of_all_schedules(rows: list[list[float]], work: int) -> None:
    costs = np.array([[0.0, *row] for row in rows])
    table = fill(costs, np.broadcast_to(np.arange(4), costs.shape), work)
    for last in range(len(rows)):
        cheapest = min(
            (
                math.fsum(costs[slot, count] for slot, count in enumerate(counts))
                for counts in itertools.product(range(4), repeat=last + 1)
                if sum(counts) >= work
            ),
            default=math.inf,
        )
        assert table.least[last] == pytest.approx(cheapest)
        if math.isfinite(cheapest):
            counts = table.counts(last)
            assert sum(counts) >= work
            assert math.fsum(costs[slot, count] for slot, count in enumerate(counts)) == pytest.approx(cheapest)


def test_a_slot_may_do_less_than_its_number_of_containers() -> None:
    """The rest of a slot, in which three containers do one worker-slot, and then a parameter server among them."""
    costs = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0]])
    done = np.array([[0, 0, 0, 1], [0, 0, 1, 2]])
    table = fill(costs, done, 3)
    assert table.least.tolist() == [math.inf, 9.0]
    assert table.counts(1) == [3, 3]
    assert fill(costs, done, 2).counts(1) == [0, 3]


@MANY
@given(instances(most_jobs=2))
def test_no_schedule_of_a_job_has_a_larger_payoff(instance: tuple[Cluster, list[Job]]) -> None:
    """Every number of workers on every machine in every slot, at the prices that the first job leaves."""
    one, (*before, last) = instance
    market = Market(one, bounds(one, [*before, last]))
    for each in before:
        found = market.best(each)
        if found is not None:
            market.take(each, found)
    found = market.best(last)
    best = -math.inf
    by_slot = [_slot_costs(market, last, slot) for slot in range(last.arrival, one.slots)]
    for counts in itertools.product(range(last.chunks + 1), repeat=len(by_slot)):
        if sum(counts) < last.work(1.0):
            continue
        cost = sum(costs.get(count, math.inf) for costs, count in zip(by_slot, counts, strict=True))
        end = last.arrival + max(place for place, count in enumerate(counts) if count)
        best = max(best, worth_in(last, end, 1.0) - cost)
    assert (found.payoff if found is not None else -math.inf) == pytest.approx(best)


def _slot_costs(market: Market, one: Job, slot: int) -> dict[int, float]:
    """The least cost of each number of workers, over all placements of workers and parameter servers."""
    workers = _cheapest(market.workers.limits, market.workers.capacity, market.workers.used[slot], one.worker)
    servers = _cheapest(market.servers.limits, market.servers.capacity, market.servers.used[slot], one.server)
    found = {0: 0.0}
    for count, cost in workers.items():
        options = [
            more
            for number, more in servers.items()
            if number * one.server_bandwidth >= count * one.worker_bandwidth and number <= count
        ]
        if count and options:
            found[count] = cost + min(options)
    return found


def _cheapest(limits: Bounds, capacity: np.ndarray, used: np.ndarray, demand: tuple[float, ...]) -> dict[int, float]:
    rooms = [
        int(min((have - taken) // need for have, taken, need in zip(*both, demand, strict=True)))
        for both in zip(capacity.tolist(), used.tolist(), strict=True)
    ]
    each = (limits.prices(used, capacity) @ np.array(demand)).tolist()
    found: dict[int, float] = {}
    for counts in itertools.product(*(range(room + 1) for room in rooms)):
        cost = math.fsum(price * count for price, count in zip(each, counts, strict=True))
        total = sum(counts)
        found[total] = min(found.get(total, math.inf), cost)
    return found


# --- all jobs -----------------------------------------------------------------------------------------------------------


def test_admission_raises_prices_until_a_job_is_refused() -> None:
    """Equal jobs, each for the whole machine in one slot: there are two slots, so the third job finds no room."""
    one = cluster([2.0], [2.0], slots=2)
    outcome = run(one, [job(name, 2, 2, bandwidths=(1, 1)) for name in "abc"])
    assert sorted(outcome.admitted) == ["a", "b"]
    assert outcome.refused == ("c",)
    assert {schedule.last for schedule in outcome.admitted.values()} == {0, 1}


def test_a_job_that_is_worth_less_than_its_resources_is_refused_even_if_there_is_room() -> None:
    one = cluster([10.0], [10.0], slots=1)
    jobs = [job(f"rich-{number}", 3, 3, worth=1000.0, bandwidths=(1, 3)) for number in range(3)]
    poor = job("poor", 1, 1, worth=2.0)
    assert "poor" in run(one, [*jobs, poor]).refused
    assert "poor" in run(one, [poor, *jobs]).admitted


def faults(one: Cluster, jobs: list[Job], outcome: Outcome) -> list[str]:
    """What an outcome breaks of the constraints of §III."""
    found = []
    used: defaultdict[tuple[str, int, int, int], float] = defaultdict(float)
    for each in jobs:
        schedule = outcome.admitted.get(each.id)
        if schedule is None:
            continue
        if sum(sum(use.workers.values()) for use in schedule.uses) < each.work(one.slot_s):
            found.append(f"{each.id} is not done")
        for use in schedule.uses:
            workers, servers = sum(use.workers.values()), sum(use.servers.values())
            if not 0 < workers <= each.chunks or use.slot < each.arrival or use.slot >= one.slots:
                found.append(f"{each.id} has {workers} workers in slot {use.slot}")
            if servers > workers or servers * each.server_bandwidth < workers * each.worker_bandwidth:
                found.append(f"{each.id} has {servers} servers for {workers} workers")
            for group, counts, demand in (("h", use.workers, each.worker), ("k", use.servers, each.server)):
                for machine, count in counts.items():
                    for kind, need in enumerate(demand):
                        used[group, machine, use.slot, kind] += count * need
    for (group, machine, slot, kind), amount in used.items():
        if amount > (one.workers if group == "h" else one.servers)[machine][kind] + 1e-9:
            found.append(f"{group}{machine} is overfull in slot {slot}")
    return found


@MANY
@given(instances(most_jobs=6))
def test_invariants_of_every_outcome(instance: tuple[Cluster, list[Job]]) -> None:
    one, jobs = instance
    outcome = run(one, jobs)
    assert not faults(one, jobs, outcome)
    assert sorted([*outcome.admitted, *outcome.refused]) == sorted(each.id for each in jobs)
    assert all(schedule.payoff > 0 for schedule in outcome.admitted.values())
    assert run(one, jobs).admitted == outcome.admitted
