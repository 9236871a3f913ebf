"""The allocation that a policy would have given, had it decided whenever the leading master did.

It starts as the log's own allocation.  At each decision of the master the policy is asked about the same apps, bounds, nodes
and times, but with the containers of its own last answer in place of the real ones; its answer is the next hypothetical
allocation.  So the two drift apart as two clusters would.  The differences to a cluster that the policy really leads:

* An adjustment takes no time.  No app is in the middle of one, and none is left alone after one.
* Apps arrive, work, fail and end as on the log: another container does not finish an app earlier (the what-if simulates that).
* An app that pauses after a failure, or whose owner cancelled it, holds nothing.
* A node that is gone takes its containers along; the policy is asked about the app's remaining containers.
* Ports are not a limit.

A policy that fails leaves the hypothetical allocation as it is, as a master would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.asking import problem_of
from dorm.core.claims import claims
from dorm.core.policy_in_force import Guarded
from dorm.policies.problem import PolicyFailure
from events.quantities import SECOND

if TYPE_CHECKING:
    from typing import Any

    from dorm.core.state import State
    from dorm.policies.problem import Allocation, AppDemand, Plan, Policy, Problem

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
        asked = problem_of(state, now, claims(state, now))
        there = {node.id for node in asked.nodes}
        apps = tuple(self._demand(app, there, state, now) for app in asked.apps)
        return msgspec.structs.replace(asked, apps=apps)

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
