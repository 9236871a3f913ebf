"""Abilities of agents that earlier agents do not have, and which of them a spec needs.

Agents of earlier releases ignore fields of specs that they do not know: they would run an app without its files, say.
So agents announce their abilities (`NodeJoined.abilities`), and masters place an app on nodes with those that it needs.
To a policy, an ability is a label of the node and a part of the app's requirement, so no policy has to know about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from events.spec.declared import declared_in
from events.spec.spec import AppSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORKDIR: Final = "workdir"
"""Fetches shipped folders, and starts containers in copies of them."""
EDITS: Final = "edits"
"""Follows `AppRevised` and `AppRestarted`.  An older agent would start the spec that an edited app was submitted with,
so no app is edited while a node has such an agent."""
FALLS_BACK: Final = "falls-back"
"""Sets a doubtful checkpoint aside (`on_doubtful: fall_back`)."""
ABILITIES: Final = (EDITS, FALLS_BACK, WORKDIR)
"""Abilities of agents of this release, sorted."""
_NEEDED: Final = {name: declared.needs for name, declared in declared_in(AppSpec).items() if declared.needs}
"""Fields of a spec, and the ability without which an agent would ignore them."""
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(AppSpec)}
_LABEL = "agent-with-"


def needed(spec: AppSpec) -> tuple[str, ...]:
    """Return the abilities that an app's nodes need, sorted."""
    return tuple(sorted({ability for name, ability in _NEEDED.items() if getattr(spec, name) != _DEFAULTS[name]}))


def requirement_with(spec: AppSpec) -> str:
    """Return which nodes an app may use (`events.spec.requirements`): what its owner requires, and what it needs."""
    clauses = [f"has {_LABEL}{ability}" for ability in needed(spec)]
    if not clauses:
        return spec.require
    return " and ".join([*([f"({spec.require})"] if spec.require.strip() else []), *clauses])


def labels_with(labels: Mapping[str, str], abilities: Iterable[str]) -> dict[str, str]:
    """Return a node's labels, including those for its agent's abilities that a spec can need."""
    return {**labels, **{f"{_LABEL}{ability}": "yes" for ability in abilities if ability in _NEEDED.values()}}
