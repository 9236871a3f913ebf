"""A crash loop beside others, and a cluster that is restarted: what they do, and what has to hold all the same.

    crash loop           an app that works a little and fails, again and again.  Nobody is made smaller for it twice
cluster restarted    agents leave in good order, then the masters, and all come back.  Apps that never ran do not start
                     before those that did
settled              no app is resized again before its generation has worked, unless it has to be
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.bounds import SETTLE_S, TRIAL_S
from dorm.core.claims import HOLD_S
from events import kinds as k
from tests.simulation.apps import AppPlan

if TYPE_CHECKING:
    from dorm.core.state import App, Generation
    from tests.simulation.faults import Fault
    from tests.simulation.history import History
    from tests.simulation.shells import AgentProcess

SECOND = 1_000_000_000
_LEAVE_S = 20.0
_LOOPS = 1000
"""Where the indexes of these apps begin, so that no other app has one."""
_MARGIN_S = 10.0
"""Of virtual time, in which the log's own may differ from it."""


def start_loop(history: History, fault: Fault) -> None:
    """Submit an app that takes what it can get, and one that fails `fault.argument` seconds, and a bit, after each start."""
    _submit(history, fault, "wide", n_min=1, n_max=12, steps=80)
    _submit(history, fault, "loop", n_min=1, n_max=1, steps=6, retries=100, fails_after_s=1.5 + 2 * fault.argument)


def _submit(
    history: History,
    fault: Fault,
    name: str,
    *,
    n_min: int,
    n_max: int,
    steps: int,
    retries: int = 6,
    fails_after_s: float = 0.0,
) -> None:
    index = _LOOPS + len(history.apps)
    plan = AppPlan(
        index=index,
        name=f"{name}{index}",
        submit_at=fault.at,
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
    )
    history.apps.append(plan)
    history.say(k.AppSubmitted(spec=plan.document()))


def restart(history: History, fault: Fault) -> None:
    """A younger app waits for the whole cluster; everybody leaves, and is away for a while; nodes come back one by one."""
    whole = sum(cpu // 1000 for cpu in history.cpus.values())
    _submit(history, fault, "young", n_min=whole, n_max=whole, steps=4)
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


class Neighbors:
    """Looks at every decision of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.shrunk_for: dict[str, int] = {}
        """By app: decisions that made others smaller so that it could start again after a failure."""
        self.ran: dict[str, int] = {}
        """Apps that ran when the cluster was restarted, with their failures until then."""
        self.back_at = 0
        """Log time at which the first node was back; 0 before."""

    def arm(self) -> None:
        """The cluster is stopped now."""
        if any("clock" in fault.kind for fault in self.history.faults):
            return
        whole = self.history.world.whole
        self.ran = {app.id: app.debt for app in whole.live_apps() if app.current is not None and app.current.released}
        self.back_at = 0

    def joined(self) -> None:
        if self.ran and not self.back_at:
            self.back_at = self.history.world.whole.time

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
            if change.adjustment == "start" and fact.policy == "dorm" and before is not None:
                self._alone(app, before, fact)

    def _settled(self, app: App, before: Generation) -> None:
        """What it was before had worked, or was there for long enough, or could not stay."""
        time = self.history.world.whole.time
        if before.adjustment != "restart" or before.worked or self._has_to_go(app, before):
            return
        signs = app.tells or app.spec.deadlines.progress_s is not None
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
            self.history.checks.hold(
                app.current is not None or newcomer.id in self.ran,
                f"{newcomer.id} is started, and {app_id}, which ran before the cluster was restarted, waits",
            )

    def _alone(self, app: App, before: Generation, fact: k.Resized) -> None:
        """Nobody is made smaller again and again for one that fails."""
        if not before.failed or not app.debt or app.interrupted_at:
            return
        apps = self.history.world.whole.apps
        for change in fact.changes:
            other = apps.get(change.app)
            was = other.generations.get(change.from_generation) if other is not None else None
            if other is None or was is None or other is app or change.adjustment != "restart":
                continue
            if len(change.placement) < len(was.containers) and not self._has_to_go(other, was):
                self.shrunk_for[app.id] = self.shrunk_for.get(app.id, 0) + 1
                break
        self.history.checks.hold(
            self.shrunk_for.get(app.id, 0) <= 1, f"others are made smaller again for {app.id}, which fails and fails"
        )
