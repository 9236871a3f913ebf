"""Logs whose truth is known: simulated ones, and their histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.query.plans import copy_of
from dorm.core.state import State
from events.spec import check_spec
from replay.simulator.forks.work_history import History
from replay.simulator.scenario import Scenario
from replay.simulator.speed import Amdahl
from replay.simulator.workload import SimulatedApp
from tests.simulator.scenarios import nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record
    from replay.simulator.simulation import Simulation


def trained(name: str, at_s: float, work: float, **spec: object) -> SimulatedApp:
    """An app that tells ten steps for each unit, and of which a tenth can't be done side by side."""
    document = {"name": name, "command": ["train", name], "demand": {"cpu": 1}, "n_max": 4, **spec}
    speed = Amdahl(0.9)
    return SimulatedApp(at_s=at_s, spec=check_spec(document), work=work, speed=speed, steps_per_unit=10.0)


def busy(**fields: object) -> Scenario:
    """Seven apps on two nodes with four cores each, that grow, shrink and wait for each other."""
    apps = (
        trained("first", 0, 900, n_max=8),
        trained("second", 60, 700, n_max=6),
        trained("third", 200, 600, n_min=2),
        trained("fourth", 230, 800, n_min=3, n_max=6),
        trained("fifth", 240, 500, n_min=4, n_max=8),
        trained("sixth", 900, 400),
        trained("seventh", 1000, 300),
    )
    return Scenario(**{"apps": apps, "nodes": nodes(2), "progress_s": 10.0, **fields})  # type: ignore[arg-type]


def written(simulation: Simulation) -> list[Record]:
    records: list[Record] = []
    simulation.observe(lambda _state, record, _folded: records.append(record))
    simulation.run()
    return records


@dataclass
class Seen:
    """What a history knows after some records, and the state after an earlier one."""

    history: History
    state: State
    end: State

    def app(self, name: str) -> str:
        return next(one.app for one in self.history.courses.values() if one.spec.name == name)


def seen(records: Sequence[Record], cut: int) -> Seen:
    state = State()
    history = History(state)
    kept = copy_of(state)
    for record in records:
        history.see(state, record, evolve(state, record))
        if record.seq == cut:
            kept = copy_of(state)
    return Seen(history, kept, state)


def seq_at(records: Sequence[Record], seconds: float) -> int:
    """The last record of that moment, in seconds from the first; 0 before it."""
    until = records[0].time + seconds * 1e9
    return max((record.seq for record in records if record.time <= until), default=0)
