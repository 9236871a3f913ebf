"""Clocks that are set by hours, days or years, and in most cases back after a while.

the log's clock    that of the server: log time follows it.  An app that may run for a short time begins shortly before, and
                   shows whether a leap or a step back counts as time
a machine's        a node's or a master's, on which nothing depends

No app ends early because of it, and none that has ended is forgotten before its retention is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from events import kinds as k
from events import subjects
from events.codec import encode
from tests.simulation.machines.apps import STRANGERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.machines.machine import Container

_LEAPS: Final = (3600.0, 3 * 86_400.0, 10 * 365 * 86_400.0)
_FIRST = 4000
"""The first index of the apps, which no other app has."""
_RUNS_S = 12.0
_BEFORE_S = 4.0
_MARGIN_S = 1.0
_NEW_MASTERS = ("master", "all masters", "cluster restarted", "all start before", "server", "agents dead")
"""How faults begin after which a master may lead that did not live through a leap."""


def _leap(attack: Attack, fault: Fault) -> None:
    step_s = _LEAPS[int(fault.argument * 1e4) % len(_LEAPS)] * (1 if int(fault.argument * 1e5) % 3 else -1)
    back = bool(int(fault.argument * 1e6) % 4)
    if fault.target:
        host = attack.history.hosts[attack.place(fault)]
        _step(attack, host.step_clock, step_s, fault.for_s if back else None)
        return
    _submit(attack, fault)
    attack.later(
        _BEFORE_S, lambda: _step(attack, attack.world.server.step_clock, step_s, fault.for_s if back else None)
    )


def _step(attack: Attack, step: Callable[[float], None], by_s: float, back_s: float | None) -> None:
    step(by_s)
    if back_s is not None:
        attack.later(back_s, lambda: step(-by_s))


def _submit(attack: Attack, fault: Fault) -> None:
    history, index = attack.history, _FIRST + fault.number
    plan = msgspec.structs.replace(STRANGERS, index=index, name=f"timed{fault.number}", steps=1000, step_s=1.0, n_max=1)
    history.strangers[index] = plan
    spec: dict[str, Any] = {**plan.document(), "max_runtime": f"{_RUNS_S:g}s"}
    event = k.AppSubmitted(id=f"timed.{index}", at=history.world.wall(), by="mallory", spec=spec)
    history.append(subjects.fact(history.cluster, "AppSubmitted", "mallory"), encode(event), event.id)


class Times:
    """When apps began and ended, in true time."""

    def __init__(self, faults: list[Fault]) -> None:
        kinds = [fault.kind for fault in faults]
        self._sure = not any(kind.startswith(_NEW_MASTERS) and "clock" not in kind for kind in kinds)
        self._began: dict[str, float] = {}
        self._ended: dict[str, tuple[float, float]] = {}

    def started(self, container: Container, now: float) -> None:
        self._began.setdefault(container.key.app, now)

    def wrong(self, fact: Any, now: float) -> str:
        """Return the error of a master's fact, "" for none."""
        if not isinstance(fact, k.AppCancelled) or fact.code != "max_runtime" or not fact.app.startswith("timed"):
            return ""
        ran_s = now - self._began.get(fact.app, now)
        if not self._sure or ran_s >= _RUNS_S - _MARGIN_S:
            return ""
        return f"{fact.app} may run for {_RUNS_S:g} s, and is ended after {ran_s:.1f} s"

    def folded(self, state: State, now: float) -> str:
        """Return the error of what was folded last, "" for none."""
        kept_s = state.settings.retention_s
        gone = [app for app in self._ended if app not in state.apps]
        for name in gone:
            ended, shortest_s = self._ended.pop(name)
            if self._sure and now - ended < min(shortest_s, kept_s) - _MARGIN_S:
                return f"{name} is forgotten {now - ended:.1f} s after its end, and is to be kept for {kept_s:g} s"
        for app in state.apps.values():
            if app.ended:
                ended, shortest_s = self._ended.get(app.id, (now, kept_s))
                self._ended[app.id] = ended, min(shortest_s, kept_s)
            else:
                self._ended.pop(app.id, None)
        return ""


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "log's clock leaps": _leap,
    "machine's clock leaps": _leap,
    "master's machine's clock leaps": _leap,
}
