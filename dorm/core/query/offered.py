"""The policies that a cluster can change to, each with the JSON Schema of its parameters, for forms and editors.

A schema has types, defaults and meanings; ranges where `dorm.policies.parameters` declares them.  The policy itself has the
last word: it checks what it is given.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query.in_force import gist_of, meaning_of
from dorm.policies.parameters import OPTIMIZER, SPEED
from dorm.policies.registry import names, policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.settings import Plugins
    from dorm.policies.parameters import Parameter

_RANGES: Mapping[str, Mapping[str, Parameter]] = {
    "dorm": OPTIMIZER, "dorm-exact": OPTIMIZER, "dorm-speed": SPEED, "dorm-speed-exact": SPEED,
}  # fmt: skip


_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "boolean"), ((str,), "string"), ((int, float), "number"), ((list, tuple), "array"), ((dict,), "object"),
)  # fmt: skip


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that the cluster's masters have."""

    name: str
    version: int
    plugin: str
    """The distribution that it comes from; "" for a policy of Dorm itself."""
    gist: str
    """What it does, in a few words."""
    schema: dict[str, Any]
    """The JSON Schema of its parameters."""


def offered(plugins: Plugins) -> list[Offered]:
    """Return Dorm's own policies by name, then the plug-ins that the leading master announced."""
    others = [
        Offered(name=name, version=one.version, plugin=one.plugin, gist="", schema=_schema("", one.defaults))
        for name, one in sorted(plugins.items())
    ]
    return [*_own(), *others]


@cache
def _own() -> tuple[Offered, ...]:
    known = ((name, policy(name)) for name in names())
    return tuple(
        Offered(
            name=name,
            version=one.version,
            plugin="",
            gist=gist_of(name),
            schema=_schema(name, one.check_params({})),
        )
        for name, one in known
    )


def _schema(name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Parameters of {name}" if name else "Parameters",
        "type": "object",
        "properties": {key: _property(name, key, value) for key, value in defaults.items()},
        "additionalProperties": False,
    }


def _property(policy_name: str, key: str, default: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"default": default}
    if (kind := _type(default)) is not None:
        found["type"] = kind
    if policy_name and (meaning := meaning_of(key)):
        found["description"] = meaning
    declared = _RANGES.get(policy_name, {}).get(key)
    if declared is not None:
        found |= {"minimum": declared.least, "maximum": declared.most, "description": declared.meaning}
        found["type"] = "integer" if isinstance(declared.default, int) else "number"
    return found


def _type(value: Any) -> str | None:
    """Return the JSON type of a default; None for null, which says nothing about other values."""
    return next((name for kinds, name in _TYPES if isinstance(value, kinds)), None)
