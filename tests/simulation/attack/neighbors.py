"""A crash loop next to other apps, and a restarted cluster, with their invariants.

crash loop           an app that works a little and fails, again and again, beside one that takes what it can get.  It
                     pauses shortly, or for so long that its place is given away.  No app shrinks for it twice, and
                     no neighbor is restarted because of it more than twice
cluster restarted    agents leave gracefully, then the masters, and all come back.  Apps that never ran do not start
                     before those that did
settled              no app is resized again before its generation has worked, unless it has to be
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from dorm.core import claims
from dorm.core.claims import HOLD_S, last_of
from dorm.core.failures import is_interruption
from dorm.core.gates import closed
from dorm.core.sizes import SETTLE_S, TRIAL_S
from events import kinds as k
from events.quantities import SECOND
from tests.simulation.machines.apps import AppPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, Generation, State
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History
    from tests.simulation.world.shells import AgentProcess

_LEAVE_S = 20.0
_LOOPS = 2000
"""The first index of these apps, which no other app has."""
_MARGIN_S = 10.0
"""Seconds by which log time may differ from virtual time."""


LASTS_S = 40.0
"""How much longer the attack lasts in a history with a crash loop, without other faults, so that it can fail repeatedly."""
_KEPT_S = 3
_LONG_PAUSE_S = 5.0
_UNDER_DORM = 0.6
"""Fraction of the crash loops under the policy `dorm`, which bounds the cost of restarts."""


def start_loop(history: History, fault: Fault) -> None:
    """Submit an app that takes all it can get, and one that fails slightly more than `fault.argument` seconds after each
    start."""
    if fault.argument < _UNDER_DORM:
        history.policies = ["dorm"]
        history.say(k.PolicyChanged(policy="dorm"))
    pause_s = _LONG_PAUSE_S if int(100 * fault.argument) % 2 else 0.0
    _submit(history, "wide", n_min=1, n_max=12, steps=1000)
    _submit(
        history,
        "loop",
        n_min=1,
        n_max=1,
        steps=1000,
        retries=100,
        fails_after_s=1.5 + 2 * fault.argument,
        pause_s=pause_s,
    )


@contextlib.contextmanager
def scaled(history: History) -> Iterator[None]:
    """Scale how long a place is kept to a crash loop here, which pauses for seconds instead of minutes."""
    usual = claims.KEPT_S
    if any(fault.kind == "crash loop" for fault in history.faults):
        claims.KEPT_S = _KEPT_S
    try:
        yield
    finally:
        claims.KEPT_S = usual


def _submit(
    history: History,
    name: str,
    *,
    n_min: int,
    n_max: int,
    steps: int,
    retries: int = 6,
    fails_after_s: float = 0.0,
    pause_s: float = 0.0,
) -> None:
    index = _LOOPS + len(history.apps)
    plan = AppPlan(
        index=index,
        name=f"{name}{index}",
        submit_at=history.world.now,
        cpu=1000,
        n_min=n_min,
        n_max=n_max,
        steps=steps,
        step_s=0.5,
        boot_s=0.2,
        checkpoint_every=1,
        on_term="leave",
        term_s=0.1,
        term_code=143,
        saves_by_command=False,
        fragile=False,
        trouble=0.0,
        retries=retries,
        fails_after_s=fails_after_s,
        pause_s=pause_s,
    )
    history.apps.append(plan)
    history.say(k.AppSubmitted(spec=plan.document()))


def restart(history: History, fault: Fault) -> None:
    """A younger app waits for the whole cluster; all nodes leave for a while, and come back one by one."""
    whole = sum(cpu // 1000 for cpu in history.cpus.values())
    _submit(history, "young", n_min=whole, n_max=whole, steps=4)
    history.world.after(1.5, lambda: None if history.attack.over else _restart(history, fault))


def _restart(history: History, fault: Fault) -> None:
    for number, (node, process) in enumerate(history.agents.items()):
        if process.alive and not process.paused:
            history.down_for[node] = fault.for_s + number * 3 * fault.argument
            process.spawn(_leave(process))
    history.neighbors.arm()

    def stop_masters() -> None:
        if history.attack.over:
            return
        for name in history.masters:
            history.down_for[name] = fault.for_s / 2
            for process in list(history.hosts[name].processes):
                process.stop()

    history.world.after(_LEAVE_S / 2, stop_masters)


async def _leave(process: AgentProcess) -> None:
    await process.agent.leave(timeout=_LEAVE_S)
    process.stop()


class _Free(NamedTuple):
    """Free room on each node, in thousandths of cores."""

    before: dict[str, int]
    """A decision; places that others give up in it still count as taken."""
    gained: dict[str, dict[str, int]]
    """By app and node: the containers that the decision adds."""
    gone: dict[str, int]
    """What apps give up in it."""

    @classmethod
    def of(cls, whole: State, fact: k.Resized) -> _Free:
        """Return the decision of a round, after it is folded."""
        free = {node.id: node.capacity.get("cpu", 0) for node in whole.nodes.values()}
        for app in whole.live_apps():
            for node, count in app.current.by_node().items() if app.current is not None else ():
                free[node] = free.get(node, 0) - count * app.demand.get("cpu", 0)
        gained: dict[str, dict[str, int]] = {}
        gone: dict[str, int] = {}
        for change in fact.changes:
            changed = whole.apps.get(change.app)
            if changed is None:
                continue
            now = changed.generations.get(change.to_generation)
            has = now.by_node() if now is not None and not now.void else {}
            before = changed.generations.get(change.from_generation) if change.adjustment != "start" else None
            had = before.by_node() if before is not None else {}
            more = {node: has.get(node, 0) - had.get(node, 0) for node in {**has, **had}}
            cpu = changed.demand.get("cpu", 0)
            gained[change.app] = {node: count * cpu for node, count in more.items() if count > 0}
            for node, count in more.items():
                free[node] = free.get(node, 0) + count * cpu
                gone[node] = gone.get(node, 0) - min(count, 0) * cpu
        return cls(free, gained, gone)

    def after(self, node: str) -> int:
        """The decision."""
        taken = sum(gained.get(node, 0) for gained in self.gained.values())
        return max(0, self.before.get(node, 0) - taken + self.gone.get(node, 0))


class Neighbors:
    """Checks every decision of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.failures: dict[str, int] = {}
        """By app, without interruptions.  No history lasts long enough for an app to run stably (`STABLE_S`), so these are
        never forgiven."""
        self.shrunk_for: dict[str, list[int]] = {}
        """By app: decisions that made others smaller so that it could start again after a failure."""
        self.restarts: dict[tuple[str, str], int] = {}
        """By an app that failed and a neighbor: how often the policy restarted the neighbor because of it."""
        self.left: dict[str, dict[str, int]] = {}
        """By an app that failed and by node: thousandths of cores that it left there and that are free ever since."""
        self.ran: dict[str, int] = {}
        """Apps that ran when the cluster was restarted, with their failures until then."""
        self.back_at = 0
        """Log time at which the first node was back; 0 before."""

    def arm(self) -> None:
        """Start checking: the cluster is stopped now."""
        if any("clock" in fault.kind for fault in self.history.faults):
            return
        whole = self.history.world.whole
        self.ran = {app.id: app.debt for app in whole.live_apps() if app.current is not None and app.current.released}
        self.back_at = 0

    def joined(self) -> None:
        if self.ran and not self.back_at:
            self.back_at = self.history.world.whole.time

    def failed(self, fact: k.GenerationFailed) -> None:
        if not is_interruption(fact):
            self.failures[fact.app] = self.failures.get(fact.app, 0) + 1
            app = self.history.world.whole.apps.get(fact.app)
            failed = app.generations.get(fact.generation) if app is not None else None
            if app is not None and failed is not None:
                cpu = app.demand.get("cpu", 0)
                self.left[app.id] = {node: count * cpu for node, count in failed.by_node().items()}

    def resized(self, fact: k.Resized) -> None:
        for change in fact.changes:
            app = self.history.world.whole.apps.get(change.app)
            now = app.generations.get(change.to_generation) if app is not None else None
            if app is None or now is None or now.void:
                continue
            before = app.generations.get(change.from_generation)
            if before is not None and change.adjustment == "restart":
                self._settled(app, before)
            if not before and change.from_generation == 0 and change.placement:
                self._after_those_who_ran(app)
            if self.back_at and change.adjustment == "start":
                self.ran.pop(change.app, None)  # It is back, and a policy may stop it like any other app.
        free = _Free.of(self.history.world.whole, fact)
        if fact.policy == "dorm":
            self._bounded(fact, free)
        started = {change.app for change in fact.changes if change.adjustment == "start"}
        for app_id, left in list(self.left.items()):
            if any(left.get(node) for other in started - {app_id} for node in free.gained.get(other, {})):
                del self.left[app_id]  # A waiting app may start there, and then the rest is reserved for none.
                continue
            left.update({node: min(cpu, free.after(node)) for node, cpu in left.items()})

    def _settled(self, app: App, before: Generation) -> None:
        """Return whether its previous generation had worked, had run for long enough, or could not stay."""
        time = self.history.world.whole.time
        if before.adjustment != "restart" or before.worked or self._has_to_go(app, before) or _asked(app, before):
            return
        signs = app.reports_progress or app.spec.deadlines.progress_s is not None
        settled = before.started_at + (SETTLE_S if signs else TRIAL_S) * SECOND
        self.history.checks.hold(
            time >= settled - int(_MARGIN_S * SECOND),
            f"{app.id} is resized from generation {before.number}, which has not worked",
        )

    def _has_to_go(self, app: App, generation: Generation) -> bool:
        nodes = self.history.world.whole.nodes
        placed = generation.by_node()
        count = sum(placed.values())
        return not app.n_min <= count <= app.n_max or any(
            name not in nodes
            or not nodes[name].usable
            or nodes[name].up_at >= generation.decided_at  # It may have come back smaller.
            for name in placed
        )

    def _after_those_who_ran(self, newcomer: App) -> None:
        whole = self.history.world.whole
        if not self.back_at or whole.time > self.back_at + int((HOLD_S - _MARGIN_S) * SECOND):
            return
        for app_id, failures in self.ran.items():
            app = whole.apps.get(app_id)
            if app is None or app.ended or app.cancel_requested or app.retry_at or app.debt != failures:
                continue
            if closed(app, whole.time):  # Held since then: no app waits for it.
                continue
            place = app.generations.get(app.generation)
            by_choice = not app.interrupted_at and place is not None and not place.void and not place.containers
            if _ends_by_itself(app):
                continue
            if by_choice or app.interrupted_at >= whole.time:  # By the policy, or interrupted by this very decision.
                continue
            self.history.checks.hold(
                app.current is not None or newcomer.id in self.ran,
                f"{newcomer.id} is started, and {app_id}, which ran before the cluster was restarted, waits",
            )

    def _bounded(self, fact: k.Resized, free: _Free) -> None:
        """Check the cost of one app's failures for others: the policy makes room for it once, and uses the room that it left
        once."""
        whole = self.history.world.whole
        gainers: list[App] = []
        chosen: list[tuple[App, Generation, Generation]] = []
        for change in fact.changes:
            app = whole.apps.get(change.app)
            now = app.generations.get(change.to_generation) if app is not None else None
            if app is None or now is None or now.void:
                continue
            before = app.generations.get(change.from_generation)
            count = len(before.containers) if before is not None and change.adjustment == "restart" else 0
            if len(change.placement) > count:
                gainers.append(app)
            resized = before is not None and change.adjustment == "restart" and before.started_at
            if before is not None and resized and not self._has_to_go(app, before):
                chosen.append((app, before, now))
        if len(gainers) != 1:
            return  # It does not say for which of them.
        gainer = gainers[0]
        in_free_room = all(cpu <= free.before.get(node, 0) for node, cpu in free.gained[gainer.id].items())
        if (
            self.failures.get(gainer.id)
            and not gainer.interrupted_at
            and self._was_failing(gainer)
            and not in_free_room
        ):
            others = [app for app, _, _ in chosen if app is not gainer]
            self._made_room(gainer, others)
        if any(app is gainer for app, _, _ in chosen):
            self._used_room(gainer, free)

    def _was_failing(self, app: App) -> bool:
        last = last_of(app)
        return last is not None and last.failed

    def _made_room(self, looping: App, others: list[App]) -> None:
        if not others:
            return
        # θ2 may clear the room of one start in several decisions.
        starts = self.shrunk_for.setdefault(looping.id, [])
        if self.failures[looping.id] not in starts:
            starts.append(self.failures[looping.id])
        self.history.checks.hold(len(starts) <= 1, f"others make room again for {looping.id}, which fails and fails")
        for other in others:
            self._restarted(looping, other)

    def _used_room(self, neighbor: App, free: _Free) -> None:
        """Return whether it grew into the room of apps that failed and have not come back."""
        whole = self.history.world.whole
        grown = free.gained[neighbor.id]
        for app_id, left in self.left.items():
            app = whole.apps.get(app_id)
            if app is None or app.ended or app.current is not None or not self._was_failing(app):
                continue
            used = sum(
                min(grown.get(node, 0), cpu - free.after(node)) for node, cpu in left.items() if cpu > free.after(node)
            )
            if used and sum(grown.values()) <= used:  # Otherwise, it would have been resized for the rest anyway.
                self._restarted(app, neighbor)

    def _restarted(self, looping: App, neighbor: App) -> None:
        both = (looping.id, neighbor.id)
        self.restarts[both] = self.restarts.get(both, 0) + 1
        self.history.checks.hold(
            self.restarts[both] <= 2,
            f"{neighbor.id} is restarted {self.restarts[both]} times because {looping.id} fails and fails",
        )


def _ends_by_itself(app: App) -> bool:
    """Return whether its last containers have begun to end without being asked: that overtakes a decision to resize it, which
    may give a part of its place to another one.  It is not interrupted, and all that it waits for may be its completion."""
    last = last_of(app)
    return (
        not app.interrupted_at
        and last is not None
        and any(one.state == "exited" and one.reason == "exit" and not one.asked for one in last.containers.values())
    )


def _asked(app: App, before: Generation) -> bool:
    """Return whether its owner wanted this generation to be replaced."""
    restarts = app.restart is not None and app.restart.seq >= before.decided_seq
    return restarts or app.generations[app.generation].revision != before.revision
