"""Tenants that take more than their share, and the guarantees for others.

Apps of many tiny containers: there is room for hundreds, and ports for a few.  An app waits for ports only if the
nodes' ranges are used up to the promised part.

Programs that flood their progress files: they cause few records, however much they write.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dorm.core.claims import claims
from dorm.core.sizes import bounds
from events import kinds as k
from events import subjects
from events.codec import encode
from tests.simulation.machines.apps import AppPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.state import State
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History

_FIRST_INDEX = 1000
"""Where the indexes of their plans begin, after those of the customers."""


def submit_crowd(history: History, fault: Fault) -> None:
    """Submit such an app, as a stranger."""
    index = _FIRST_INDEX + fault.number
    plan = AppPlan(
        index=index,
        name=f"crowd{index}",
        submit_at=fault.at,
        cpu=1,
        n_min=1,
        n_max=50,
        steps=4 + int(20 * fault.argument),
        step_s=1.0,
        boot_s=0.2,
        checkpoint_every=3,
        on_term="save",
        term_s=0.1,
        term_code=0,
        saves_by_command=False,
        fragile=False,
        trouble=0.0,
        retries=3,
    )
    history.strangers[index] = plan
    event = k.AppSubmitted(id=f"crowd.{index}", at=history.world.wall(), by="mallory", spec=plan.document())
    history.append(subjects.fact(history.cluster, "AppSubmitted", "mallory"), encode(event), event.id)


def flood_progress(history: History, fault: Fault) -> None:
    """Flood the progress file of one container of a node; some also leave a hole of gigabytes."""
    running = [one for one in history.machines[fault.target].running() if one.program is not None]
    for container in sorted(running, key=lambda container: container.key):
        if container.program is not None:
            container.program.flood(lines=300, hole=2**32 if fault.argument < 0.5 else 0)


class Spoken:
    """The number of progress facts of each container on the log."""

    def __init__(self) -> None:
        self._records: Counter[tuple[str, int]] = Counter()
        self._since: dict[tuple[str, int], float] = {}

    def too_much(self, event: k.AppProgressed | k.AppCheckpointed, now: float) -> str:
        """Return "", or the number of facts of its generation, which one program reports, if that is too large.  `now` is
        virtual seconds; restarted agents start counting again, so some more are allowed."""
        key = event.app, event.generation
        self._records[key] += 1
        seconds = now - self._since.setdefault(key, now)
        count = self._records[key]
        return f"{count} facts of the progress of {key} in {seconds:.1f} s" if count > 60 + 5 * seconds else ""


def needless_wait(state: State, decision: k.Resized) -> str:
    """Return which app of this decision waits for ports although a node has room and ports for it; "" for none.  Only for the
    policy that may shrink others for it."""
    if decision.policy != "dorm" or any(reason.code == "reserved" for reason in decision.reasons.values()):
        return (
            ""  # Apps that have to wait for an interrupted one take ports in this decision, although they do not run.
        )
    live = list(state.live_apps())
    places: dict[str, Mapping[str, int]] = {app.id: app.current.by_node() for app in live if app.current is not None}
    # No app grows into the place of an app that pauses after a failure.
    places |= {app: claim.place for app, claim in claims(state, state.time).items() if claim.pausing}
    # The decision's containers count, even if a record after its basis has made them void.
    placed = {
        change.app: Counter(place.node for place in change.placement) for change in decision.changes if change.placement
    }
    places |= {app: place for app, place in placed.items() if app in state.apps}
    for app in live:
        waiting = decision.reasons.get(app.id)
        if app.id in placed:
            continue
        if app.current is not None or waiting is None or waiting.code != "ports":
            continue
        least = bounds(app, state.time).n_min
        for node in state.nodes.values():
            here = {app_id: place.get(node.id, 0) for app_id, place in places.items()}
            used = sum(state.apps[other].demand.get("cpu", 0) * count for other, count in here.items())
            size = node.ports[1] - node.ports[0] + 1
            promised = max(size - len(live), size // 2)
            fits = node.capacity.get("cpu", 0) - used >= app.demand.get("cpu", 0) * least
            if node.usable and fits and sum(here.values()) + least <= promised:
                return (
                    f"{app.id} waits for ports ({waiting.text}), and {node.id} has room for it and of its {size} ports "
                    f"promises {promised} containers, where {sum(here.values())} are"
                )
    return ""
