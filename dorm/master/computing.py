"""Allocations are computed outside the loop, with a time limit: no policy stops a master.

The process of a plug-in is killed when its time is over (`dorm.plugins`). Dorm's own policies run in a thread of the
master, which cannot be killed. A computation that takes too long is therefore abandoned: the round keeps the last
allocation, the log says that the policy took too long, and the thread's result is discarded. While it computes, the
same policy is not asked again, and at most `MOST_LATE` threads are left behind, so that others remain for the
master's files.

The limit is the master's own and decides nothing silently: an audit reads on the log that the policy failed there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from dorm.core.allocation import gave_up
from dorm.core.next_round import Decision, decide
from dorm.policies.registry import built_in, policy
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State

LIMIT_S = 300.0
"""The first allocation of 10,000 apps on 50,000 nodes takes 70 s."""
MOST_LATE = 2


class Run:
    """One computation; called in a thread."""

    def __init__(self, policy: str, params: dict[str, Any]) -> None:
        self.request = (policy, params)
        self.began = self.ended = False
        self.late = False
        """It was given up."""

    def __call__(self, state: State, now: int) -> Decision:
        self.began = True
        try:
            return decide(state, now, allocate=True)
        finally:
            self.ended = True


class Computing:
    """The computations of one master. `solve` runs a function outside the loop."""

    def __init__(self, solve: Callable[..., Any], limit_s: float) -> None:
        self._solve = solve
        self._limit_s = limit_s
        self._runs: list[Run] = []
        self._loading = False

    async def load(self, state: State) -> None:
        """Import the policy's solver now: it takes half a second, for which the first app would wait."""
        await self._solve(self._load, state.settings.policy)

    def _load(self, name: str) -> None:
        self._loading = True
        try:
            with contextlib.suppress(DormError):  # The decision says what is wrong with it.
                policy(name)
        finally:
            self._loading = False

    @property
    def busy(self) -> bool:
        """Whether a thread still computes, also one that was given up, or imports a solver."""
        return self._loading or any(run.began and not run.ended for run in self._runs)

    async def allocation(self, state: State, now: int) -> Decision:
        """Return the decision, or the failure of a policy that took too long."""
        run = Run(state.settings.policy, dict(state.settings.params))
        self._runs = [each for each in self._runs if each.began and not each.ended]
        late = [each for each in self._runs if each.late]
        if any(each.request == run.request for each in late):
            return _failed(state, now, "it still computes an earlier answer")
        if len(late) >= MOST_LATE:
            return _failed(state, now, "policies that took too long still compute; restart the master to end them")
        self._runs.append(run)
        limit_s = self._limit_s if built_in(state.settings.policy) else None  # The process of a plug-in has its own.
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                decision: Decision = await self._solve(run, state, now)
        except TimeoutError:
            if not limit.expired():
                raise
            run.late = True
            return _failed(state, now, f"it took longer than {self._limit_s:g} s, and was given up")
        return decision


def _failed(state: State, now: int, why: str) -> Decision:
    return Decision(gave_up(state, now, why), allocated=True)
