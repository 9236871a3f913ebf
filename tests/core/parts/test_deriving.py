"""After each round, a node whose part is old desires what a part of the last record says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents.desired import Desired, own_subjects
from dorm.core.evolve import evolve
from dorm.core.parts.concerned import Concerned
from dorm.core.parts.deriving import part_of, parts_of
from dorm.core.state import State
from events import kinds as k
from events.parts import content_of
from events.subjects import matches
from tests.agents.folding import desired_of
from tests.core.records import Bench
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
        if key not in desired.exited  # A part need not say when others took up that a member left; it has ended by then.
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
            desired = agents.setdefault(part.node, Desired(part.node))
            assert desired.install(part)
            written += 1
        for node, desired in agents.items() if isinstance(event, k.Round) else ():
            fresh = Desired(node)
            fresh.install(part_of(state, cluster, node))
            assert shape(desired, state.time) == shape(fresh, state.time), f"{node} at {record.seq}"
    assert 0 < written < len(records) * len(agents) / 2, "most records concern few nodes"


def test_parts_state_how_long_each_tenants_apps_are_kept() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=1)
    bench.add(k.PolicyChanged(retention_s=60, tenant_retention_s={app.spec.user: 600.0, "other": 1.0}))
    bench.add(k.PolicyChanged(tenant_retention_s={"other": None}))
    desired = desired_of(bench.records, "a")
    assert (desired.retention_of(app.id), desired.retention_of("unknown")) == (600, 60)
