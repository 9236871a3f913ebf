"""After each round, a node that knows only its part desires the same as one that has folded all rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents.desired import Desired, own_subjects, subjects_of
from agents.following import install
from dorm.core.evolve import evolve
from dorm.core.parts.concerned import Concerned
from dorm.core.parts.deriving import known_nodes, part_of, parts_of
from dorm.core.state import State
from events import kinds as k
from events.parts import content_of
from events.subjects import matches
from tests.core.records import CLUSTER, Bench
from tests.simulation.history import History
from tests.tries import tries

if TYPE_CHECKING:
    from events.log.records import Record


def shape(desired: Desired, now: int) -> dict[str, Any]:
    """All that an agent acts on."""
    wanted = {
        key: (
            app.generation, app.resume, app.checkpoints, app.master_port, app.batch, app.killed, app.owner,
            app.membership, app.members, app.founders,
            # With whom it starts matters until it has; of those that left since, a part says nothing.
            () if key in desired.started else app.joined_as(key.slot),
        )
        for key, app in desired.wanted().items()
        if key not in desired.exited  # The rounds do not say when others took up that a member left; it has ended by then.
    }  # fmt: skip
    return {
        "due": sorted(desired.due),
        "wanted": wanted,
        "to prepare": sorted(desired.to_prepare()),
        "works on": sorted(key for key in desired.due if desired.works_on(key, now)),
        "started": sorted(desired.started & desired.due),
        "condition": (desired.condition, desired.lease_ended, desired.holder, desired.held_at),
        "times": desired.times,
    }


def of_history(seed: int) -> tuple[str, list[Record]]:
    history = History(seed)
    history.run()
    return history.cluster, history.world.server.records


def fold(desired: Desired, cluster: str, records: list[Record]) -> None:
    patterns = subjects_of(cluster, desired.node)
    for record in records:
        if any(matches(pattern, record.subject) for pattern in patterns):
            desired.fold(record)


@pytest.mark.usefixtures("only_policies_of_ours")
@pytest.mark.parametrize("seed", [7, 13, *range(300, 300 + tries(0, 40))])
def test_a_part_agrees_with_the_rounds(seed: int) -> None:
    cluster, records = of_history(seed)
    state, folds, compared = State(), dict[str, Desired](), 0
    for record in records:
        event = evolve(state, record).event
        for node in known_nodes(state):
            if node not in folds:
                folds[node] = Desired(node)
                fold(folds[node], cluster, records[: record.seq - 1])
            fold(folds[node], cluster, [record])
        for node, folded in folds.items() if isinstance(event, k.Round) else ():
            followed = Desired(node, by_part=True)
            assert install(followed, part_of(state, cluster, node))
            assert shape(followed, state.time) == shape(folded, state.time), f"{node} at {record.seq}"
            compared += 1
    assert compared > 50


@pytest.mark.usefixtures("only_policies_of_ours")
@pytest.mark.parametrize("seed", [7, *range(300, 300 + tries(0, 40))])
def test_events_without_a_node_change_no_part(seed: int) -> None:
    """A node whose last part is old, and that has read its own facts since, desires what a part of the last record says."""
    cluster, records = of_history(seed)
    state, concerned = State(), Concerned()
    agents: dict[str, Desired] = {}
    written = 0
    for record in records:
        folded = evolve(state, record)
        event = folded.event
        concerned.see(state, record, folded)
        for node, desired in agents.items():
            if any(matches(pattern, record.subject) for pattern in own_subjects(cluster, node)):
                desired.fold(record)
        nodes, asked = concerned.taken()
        assert set(asked) <= set(nodes)
        for part in parts_of(state, cluster, nodes):
            assert content_of(part) == content_of(part_of(state, cluster, part.node))
            desired = agents.setdefault(part.node, Desired(part.node, by_part=True))
            assert install(desired, part)
            written += 1
        for node, desired in agents.items() if isinstance(event, k.Round) else ():
            fresh = Desired(node, by_part=True)
            install(fresh, part_of(state, cluster, node))
            assert shape(desired, state.time) == shape(fresh, state.time), f"{node} at {record.seq}"
    assert 0 < written < len(records) * len(agents) / 2, "most records concern few nodes"


def test_rounds_and_parts_state_how_long_each_tenants_apps_are_kept() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=1)
    bench.add(k.PolicyChanged(retention_s=60, tenant_retention_s={app.spec.user: 600.0, "other": 1.0}))
    bench.add(k.PolicyChanged(tenant_retention_s={"other": None}))
    folded, followed = Desired("a"), Desired("a", by_part=True)
    for record in bench.records:
        folded.fold(record)
    assert install(followed, part_of(bench.state, CLUSTER, "a"))
    for desired in (folded, followed):
        assert (desired.retention_of(app.id), desired.retention_of("unknown")) == (600, 60)
