"""Owners restart and edit existing apps, sometimes with invalid or outdated edits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from events import kinds as k
from events.spec.editing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import App
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault

_EDITS: Final[tuple[Callable[[App], dict[str, Any]], ...]] = (
    lambda app: {"env": {**app.spec.env, "EDITED": str(app.revision)}},
    lambda app: {"demand": {"cpu": app.next_demand["cpu"] / 2000}},
    lambda app: {"weight": app.weight + 1, "n_max": app.n_max + 1, "retries": {"limit": 5, "backoff": "500ms"}},
    lambda app: {"demand": {"cpu": app.next_demand["cpu"] / 500}, "n_min": 1},
    lambda app: {"grace": 2, "image": f"image:{app.revision}"},
    lambda app: {"name": "another"},
    lambda app: {"n_min": 0},
)


def _edit(attack: Attack, fault: Fault) -> None:
    """Edit each app at another time, and one of them twice from the same spec."""
    for number, app in enumerate(list(attack.world.whole.apps.values())):
        choice = int(fault.argument * len(_EDITS)) + number
        attack.later(0.7 * number, partial(_edit_one, attack, app.id, choice))


def _edit_one(attack: Attack, id: str, choice: int) -> None:
    app = attack.world.whole.apps.get(id)
    if app is None:
        return
    spec = app.owners_spec
    made_from = fingerprint(spec) if choice % 2 else ""
    for more in (choice, choice + 2) if choice % 3 == 0 else (choice,):
        document = {**msgspec.to_builtins(spec), **_EDITS[more % len(_EDITS)](app)}
        attack.history.say(k.AppEditRequested(app=id, spec=document, made_from=made_from))


def _restart(attack: Attack, fault: Fault) -> None:
    """Restart apps, also ended ones, and the same one twice."""
    for number, app in enumerate(list(attack.world.whole.apps)):
        fresh = number % 3 == int(fault.argument * 3)
        attack.later(0.9 * number, partial(_say, attack, app, fresh))


def _say(attack: Attack, app: str, fresh: bool) -> None:
    for _ in range(2):
        attack.history.say(k.AppRestartRequested(app=app, fresh=fresh))


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {"apps edited": _edit, "apps restarted": _restart}
