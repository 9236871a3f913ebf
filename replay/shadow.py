"""What another policy would do on a log, decision by decision, next to the master that really decides.

A shadow only reads.  It has no way to append to a log, to take a lease or to publish a heartbeat; its caller decides where the
comparisons go (`events.nats.stores`).

It keeps the allocation that the policy would have given, had it decided whenever the leading master did (`Hypothetical`).
This starts as the log's own allocation.  At each decision of the master the policy is asked about the same apps, bounds,
nodes and times, but with the containers of its own last answer in place of the real ones; its answer is the next
hypothetical allocation, and a `Comparison` puts it next to the real one.  So the two drift apart as two clusters would.  A
cluster that the policy really leads would differ in this:

* An adjustment takes no time here.  No app is in the middle of one, and none is left alone after one.
* Apps arrive, work, fail and end as on the log: another container does not finish an app earlier (the what-if simulates that).
* An app that pauses after a failure, or whose owner cancelled it, holds nothing.
* A node that is gone takes its containers along; the policy is asked about the app's remaining containers.
* Ports are not a limit.

A policy that fails leaves the hypothetical allocation as it is, as a master would.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm.core.asking import problem_of
from dorm.core.claims import claims
from dorm.core.evolve import GapError
from dorm.core.policy_in_force import Guarded
from dorm.live_fold import AGAIN_S, Fold
from dorm.policies import integer
from dorm.policies.problem import PolicyFailure
from events.kinds import IdleTicked, PolicyFailed, Resized, Round
from events.log.records import LogClosed, LogError
from events.logger import Logger
from events.quantities import SECOND
from events.subjects import kind_of
from replay.moments import AtSequence
from replay.travel import state_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from typing import Any

    from dorm.core.state import App, State
    from dorm.policies.problem import Allocation, AppDemand, Plan, Policy, Problem
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress


# --- hypothetical -----------------------------------------------------------------------------------------------------

Places = dict[str, int]


class Hypothetical:
    """One policy's allocation, by app and node."""

    def __init__(self, policy: Policy, params: dict[str, Any], state: State) -> None:
        self.policy = Guarded(policy)
        self.params = params
        self.places: dict[str, Places] = {
            app.id: app.current.by_node() for app in state.live_apps() if app.current is not None
        }
        self._plans: dict[str, Plan] = {}
        """The promises of its last answer, which the next problem brings back."""
        self.changes = 0
        """Apps that had containers and were changed, over all decisions so far."""

    def problem(self, state: State, now: int) -> Problem:
        """Return the policy's problem at `now` (UTC ns)."""
        real = problem_of(state, now, claims(state, now))
        there = {node.id for node in real.nodes}
        apps = tuple(self._demand(app, there, state, now) for app in real.apps)
        return msgspec.structs.replace(real, apps=apps)

    def _demand(self, app: AppDemand, there: set[str], state: State, now: int) -> AppDemand:
        places = {node: count for node, count in self.places.get(app.id, {}).items() if node in there}
        waited_s = 0.0 if places else float(max(0, now - state.apps[app.id].submitted_at) // SECOND)
        return msgspec.structs.replace(
            app, current=places, pinned=False, absent=False, waited_s=waited_s, plan=self._plans.get(app.id)
        )

    def decide(self, problem: Problem) -> Allocation:
        """Ask the policy, and continue with its answer.  Raises PolicyFailure, which leaves the places unchanged."""
        try:
            answer = self.policy.allocate(problem, self.params)
        except PolicyFailure:
            self.places = {app.id: app.current for app in problem.apps if app.current}
            raise
        before = {app.id: app.current for app in problem.apps}
        self._plans = {
            name: plan for name, plan in {**self._plans, **answer.plans}.items() if plan.slots and name in before
        }
        self.places = {app: places for app, places in answer.counts.items() if places}
        self.changes += sum(1 for app, places in before.items() if places and self.places.get(app, {}) != places)
        return answer


# --- comparing --------------------------------------------------------------------------------------------------------

MOST_APPS = 1000
"""Apps that a comparison names, so that it fits into one message."""


class AppDifference(msgspec.Struct, frozen=True):
    """An app that would have another number of containers."""

    app: str
    """Id of the app."""
    name: str
    has: int
    """Containers that the log's last decision about it gives it, whether or not they run yet."""
    would_have: int
    nodes: dict[str, int]
    nodes_then: dict[str, int]
    why: str
    """Reason why it would have no more, by the policy; if it would have its maximum, why it has less, by the log."""
    code: str
    """The reason's code, "" for none."""


class Figures(msgspec.Struct, frozen=True):
    """The cluster under one of the two allocations; both are computed alike, from counts alone."""

    utilization: float
    """U: the used part of each resource, summed over the resources."""
    fairness_loss: float
    """F: distance from weighted DRF."""
    containers: int
    running: int
    """Apps that have containers."""
    waiting: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag="comparison", tag_field="kind"):
    """One line of the comparison stream, for one decision of the leading master."""

    cluster: str
    policy: str
    """The policy of the shadow."""
    version: int
    plugin: str
    params: dict[str, object]
    seq: int
    """The record of the master's decision."""
    at: int
    """Log time of the decision (UTC ns)."""
    decided_by: str
    """The policy that decided it."""
    live: int
    """Apps that may hold containers now, which are compared."""
    differing: int
    """Number of those that would have another number of containers."""
    moved: int
    """Number of others that have the same number of containers, on other nodes."""
    apps: list[AppDifference]
    """Those that differ, by id, at most `MOST_APPS`."""
    now: Figures
    then: Figures
    changes: int
    """Adjustments of running apps since the shadow began, by the policy."""
    changes_really: int
    """The same by the log."""
    decisions: int
    """Decisions of the master that were compared so far."""
    skipped: int
    """Decisions that were not compared, because the next one arrived before the policy had answered."""
    took_s: float
    """Seconds that the policy took."""
    failed: str
    """Reason why it gave no usable answer, "" if it did; the hypothetical allocation then stays as it was."""


def compared(hypothetical: Hypothetical, state: State, now: int) -> tuple[Problem, list[AppDifference], int, str]:
    """Let the policy decide; return its problem, the apps that differ, how many moved, and why it failed."""
    problem = hypothetical.problem(state, now)
    answer, failed = None, ""
    try:
        answer = hypothetical.decide(problem)
    except PolicyFailure as failure:
        failed = f"{failure} [{failure.code}]"
    different, moved = [], 0
    for demand in problem.apps:
        app = state.apps[demand.id]
        has, then = held(app), hypothetical.places.get(demand.id, {})
        if sum(has.values()) != sum(then.values()):
            different.append(_difference(app, has, then, answer))
        elif has != then:
            moved += 1
    return problem, sorted(different, key=lambda difference: difference.app), moved, failed


def held(app: App) -> Places:
    return app.current.by_node() if app.current is not None else {}


def _difference(app: App, has: Places, then: Places, answer: Allocation | None) -> AppDifference:
    reason = answer.reasons.get(app.id) if answer is not None else None
    text, code = (reason.text, reason.code) if reason is not None else ("", "")
    if reason is None and app.waiting is not None and sum(has.values()) < sum(then.values()):
        text, code = app.waiting.text, app.waiting.code
    return AppDifference(app.id, app.name, sum(has.values()), sum(then.values()), has, then, text, code)


def figures(problem: Problem, places: dict[str, Places]) -> Figures:
    """Return the figures of a cluster in which the problem's apps have these containers."""
    instance = integer.read(problem)
    n = np.array(
        [
            sum(places.get(app.id, {}).values()) // int(gang)
            for app, gang in zip(instance.apps, instance.gang, strict=True)
        ],
        np.int64,
    )
    counts = [sum(places.get(app.id, {}).values()) for app in problem.apps]
    return Figures(
        utilization=integer.utilization(instance, n) if len(n) else 0.0,
        fairness_loss=(
            integer.loss(instance, n, integer.theoretical_shares(instance, instance.possible)) if len(n) else 0.0
        ),
        containers=sum(counts),
        running=sum(1 for count in counts if count),
        waiting=sum(1 for count in counts if not count),
    )


# --- following --------------------------------------------------------------------------------------------------------

_log = Logger(__name__)
_DECISIONS = (Resized, IdleTicked, PolicyFailed)
"""Facts that show that the master asked its policy; a decision that changes nothing counts too."""


class Shadow:
    """A policy beside a log.  It only reads: a `ReadableLog` cannot append."""

    def __init__(self, log: ReadableLog, cluster: str, policy: Policy, params: dict[str, Any]) -> None:
        self._log, self._cluster = log, cluster
        self._policy, self._params = policy, params
        self._decisions = self._skipped = self._changes_really = 0

    async def run(
        self, *, since: int, end: int, follow: bool, progress: Progress | None = None
    ) -> AsyncGenerator[Comparison, None]:
        """Yield a comparison for each decision after the record `since`, up to `end`; with `follow`, also for later
        records, without end.  Of decisions that arrive together while it follows, only the last one is compared.
        Raises as `replay.travel.state_at` and `ReadableLog.read`; while it follows, it starts over instead, with the
        allocation at the log's end."""
        fold = Fold(self._log, partial(self._state_at, since))
        await fold.begin()
        while since < end or follow:
            try:
                async with aclosing(self._compare(fold, since, end, follow, progress)) as comparisons:
                    async for comparison in comparisons:
                        yield comparison
                return
            except (LogError, GapError) as error:
                if not follow or isinstance(error, LogClosed):
                    raise
                _log.warning("the log cannot be followed, starting over", reason=str(error))
            await asyncio.sleep(AGAIN_S)
            fold = Fold(self._log, self._state_at_end)

    async def _compare(
        self, fold: Fold, since: int, end: int, follow: bool, progress: Progress | None
    ) -> AsyncGenerator[Comparison, None]:
        state = await fold.begin()
        hypothetical = Hypothetical(self._policy, self._params, state)
        async with aclosing(self._log.read(after=state.seq, follow=follow)) as batches:
            async for batch in batches:
                for part in _up_to_decisions(batch, end):
                    if part[0].seq > end and not follow:
                        return
                    comparisons = await asyncio.to_thread(self._take, fold, part, hypothetical)
                    if progress and end > since:
                        progress(min(state.seq, end) - since, end - since)
                    if comparisons is not None:
                        yield comparisons
                if not follow and state.seq >= end:
                    return

    async def now(self) -> Comparison:
        """Return one comparison for the log's end: the policy's changes to the present allocation."""
        state = await self._state_at_end()
        hypothetical = Hypothetical(self._policy, self._params, state)
        return await asyncio.to_thread(self._compared, state, hypothetical, state.settings.policy)

    async def _state_at(self, seq: int) -> State:
        return await state_at(self._log, AtSequence(seq or await self._log.start()))

    async def _state_at_end(self) -> State:
        return await state_at(self._log, AtSequence(await self._log.end()))

    def _take(self, fold: Fold, part: Sequence[Record], hypothetical: Hypothetical) -> Comparison | None:
        """Fold records, the last of which may be a decision, and compare after that."""
        decided: list[Resized | IdleTicked | PolicyFailed] = []
        state = fold.state
        for record in part:
            before = {app.id: held(app) for app in state.live_apps()} if _may_decide(record) else {}
            folded = fold.take(record)
            event = folded.event
            facts = [fact for fact in event.events if isinstance(fact, _DECISIONS)] if isinstance(event, Round) else []
            if facts and folded.outcome == "applied":
                decided.append(facts[-1])
                now = {app.id: held(app) for app in state.live_apps()}
                self._changes_really += sum(1 for app, had in before.items() if had and now.get(app, had) != had)
        if not decided:
            return None
        self._skipped += len(decided) - 1
        return self._compared(state, hypothetical, decided[-1].policy)

    def _compared(self, state: State, hypothetical: Hypothetical, decided_by: str) -> Comparison:
        began = time.monotonic()
        problem, different, moved, failed = compared(hypothetical, state, state.time)
        took_s = time.monotonic() - began
        self._decisions += 1
        really = {app.id: held(state.apps[app.id]) for app in problem.apps}
        return Comparison(
            cluster=self._cluster,
            policy=hypothetical.policy.name,
            version=hypothetical.policy.version,
            plugin=hypothetical.policy.plugin,
            params=self._params,
            seq=state.round_seq,
            at=state.time,
            decided_by=decided_by,
            live=len(problem.apps),
            differing=len(different),
            moved=moved,
            apps=different[:MOST_APPS],
            now=figures(problem, really),
            then=figures(problem, hypothetical.places),
            changes=hypothetical.changes,
            changes_really=self._changes_really,
            decisions=self._decisions,
            skipped=self._skipped,
            took_s=round(took_s, 6),
            failed=failed,
        )


def _up_to_decisions(batch: Sequence[Record], end: int) -> list[Sequence[Record]]:
    """Cut a batch after each record that may be a decision; records after `end` arrived together and stay together."""
    parts: list[Sequence[Record]] = []
    begun = 0
    for index, record in enumerate(batch):
        if record.seq <= end and (_may_decide(record) or record.seq == end):
            parts.append(batch[begun : index + 1])
            begun = index + 1
    if begun < len(batch):
        parts.append(batch[begun:])
    return parts


def _may_decide(record: Record) -> bool:
    return kind_of(record.subject) == Round.__name__


def smaller(comparison: Comparison, most: int) -> Comparison:
    """Return a comparison that names at most this many apps."""
    return msgspec.structs.replace(comparison, apps=comparison.apps[:most])
