"""What each field of a spec says about itself, next to its type (`events.spec.spec.AppSpec`).

    edited      whether a running app takes a new value at once (`live`), by a restart, or never (`events.spec.editing`)
    later       for a field that counts until the first containers start: what to do instead after that
    needs       the ability of agents without which a value other than the default means nothing (`events.spec.abilities`)
    shown       whether other tenants may see it, because it determines the app's share (`replay.tenants.hiding`)

A field that says nothing needs a restart and is hidden, which is safe for whatever a later version adds.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Literal

import msgspec

from events.fields import types_of

Edited = Literal["live", "restart", "never"]


class Declared(msgspec.Struct, frozen=True):
    """What a field says."""

    edited: Edited = "restart"
    later: str = ""
    needs: str = ""
    shown: bool = False


def live(*, later: str = "", needs: str = "", shown: bool = False) -> msgspec.Meta:
    return _mark(Declared("live", later, needs, shown))


def by_restart(*, later: str = "", needs: str = "", shown: bool = False) -> msgspec.Meta:
    return _mark(Declared("restart", later, needs, shown))


def never() -> msgspec.Meta:
    return _mark(Declared("never"))


def _mark(declared: Declared) -> msgspec.Meta:
    return msgspec.Meta(extra={"declared": declared})


@cache
def declared_in(spec: type[msgspec.Struct]) -> dict[str, Declared]:
    """Return what the fields of a spec's class say, in their order."""
    return {name: _declared(kind) for name, kind in types_of(spec).items()}


def _declared(kind: object) -> Declared:
    for mark in getattr(kind, "__metadata__", ()):
        if isinstance(mark, msgspec.Meta) and mark.extra and "declared" in mark.extra:
            return typing.cast("Declared", mark.extra["declared"])
    return Declared()
