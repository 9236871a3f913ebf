"""Small scenarios of all sorts, and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from events.spec import check_spec
from replay.simulator.scenario import DecisionTime, Outage, Rounds, Scenario, Tasks
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Amdahl, Linear, Table
from replay.simulator.timings import LIVE, Timings
from replay.simulator.workload import Failure, SimulatedApp, SimulatedNode

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record

GIB = 2**30


class Written(NamedTuple):
    """A run and its log."""

    simulation: Simulation
    state: State
    records: list[Record]
    events: list[Event]


def play(scenario: Scenario) -> Written:
    return played(Simulation(scenario))


def played(simulation: Simulation) -> Written:
    records: list[Record] = []
    events: list[Event] = []

    def note(_state: State, record: Record, _folded: Folded) -> None:
        event = _folded.event
        records.append(record)
        events.append(event)

    simulation.observe(note)
    return Written(simulation, simulation.run(), records, events)


def app(name: str, at_s: float, work: float, **fields: object) -> SimulatedApp:
    """One of containers with 1 core each; fields of the spec (n_min, n_max, cpu, retries) are told from its own."""
    of_spec: dict[str, object] = {
        key: fields.pop(key) for key in ("n_min", "n_max", "retries", "elastic") if key in fields
    }
    demand = {"cpu": fields.pop("cpu", 1), "memory": "1GiB"}
    spec = check_spec({"name": name, "command": ["train"], "demand": demand, **of_spec})
    return SimulatedApp(**{"at_s": at_s, "spec": spec, "work": work, "speed": Linear(), **fields})  # type: ignore[arg-type]


def nodes(count: int, cpu: int = 4) -> tuple[SimulatedNode, ...]:
    return tuple(SimulatedNode(f"n{i}", {"cpu": cpu * 1000, "memory": 64 * GIB}) for i in range(count))


_seconds = st.floats(0, 600).map(lambda value: round(value, 3))
_timings = st.sampled_from(
    (
        Timings(),
        LIVE,
        Timings(checkpoint_s=5, stop_s=2, start_s=3, boot_s=4, resume_s=6),
        Timings(can_checkpoint=False, stop_s=1.5),
        Timings(checkpoint_every_s=20, checkpoint_s=1),
        Timings(checkpoint_s=0, stop_s=0, start_s=0, boot_s=0, resume_s=0),
    )
)
_speeds = st.sampled_from((Linear(), Linear(0.37), Amdahl(0.9), Table(((1, 1.0), (4, 2.5)))))
_failures = st.lists(st.builds(Failure, work=st.floats(0, 400), exit_code=st.sampled_from((1, 137))), max_size=2).map(
    tuple
)


@st.composite
def apps(draw: st.DrawFn, most: int = 5) -> tuple[SimulatedApp, ...]:
    found = []
    for index in range(draw(st.integers(1, most))):
        n_min = draw(st.integers(1, 3))
        at_s = draw(_seconds)
        found.append(
            app(
                f"app-{index}",
                at_s,
                work=draw(st.floats(0, 1500)),
                n_min=n_min,
                n_max=n_min + draw(st.integers(0, 6)),
                cpu=draw(st.sampled_from((1, 2, 3))),
                retries={"limit": draw(st.integers(0, 2)), "backoff": "7s"},
                elastic=draw(st.sampled_from(("", "live"))),
                speed=draw(_speeds),
                timings=draw(st.none() | _timings),
                cancel_at_s=draw(st.none() | st.none() | _seconds),
                fails_at=draw(st.just(()) | _failures),
            )
        )
    return tuple(found)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    machines = nodes(draw(st.integers(1, 4)))
    outages = st.builds(
        Outage,
        node=st.sampled_from(machines).map(lambda node: node.name),
        at_s=_seconds,
        for_s=st.none() | st.sampled_from((3.0, 40.0, 330.0, 800.0)),
    )
    rivals = ("tiresias", "optimus", "fifo", "srtf", "drf", "gavel", "themis", "shockwave", "market")
    policy = draw(st.sampled_from(("static", "dorm", "dorm", "dorm", *rivals)))
    return Scenario(
        apps=draw(apps()),
        nodes=machines,
        policy=policy,
        params={"count": draw(st.integers(1, 4))} if policy in ("static", "tiresias", "gavel", "shockwave") else {},
        quiet_limit_s=draw(st.sampled_from((1.0, 60.0))),
        quiet_s=draw(st.sampled_from((0.2, 60.0))),
        rounds=draw(st.none() | st.none() | st.sampled_from((Rounds(60.0), Rounds(20.0, always=True)))),
        retention_s=draw(st.sampled_from((10.0, 3600.0))),
        timings=draw(_timings),
        tasks=Tasks() if policy == "task-level" else None,
        decision_time=draw(st.sampled_from((DecisionTime(), DecisionTime(fixed_s=4.0), DecisionTime(0.0, 0.0)))),
        outages=tuple(draw(st.lists(outages, max_size=3))),
        progress_s=draw(st.sampled_from((0.0, 11.0, 60.0))),
    )
