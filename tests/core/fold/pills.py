"""Poison: every kind of event with each of its fields, one at a time, at each of its extremes; and bodies that are not
events.

The fields and their types are read off the classes, so a new field is tried as soon as it is there.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import inspect as mi

from events import kinds as k
from events import subjects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import State

FACTS: tuple[type[k.Event], ...] = get_args(k.MasterFact)
KINDS: tuple[type[k.Event], ...] = (*get_args(k.Published), *FACTS)
INTEGERS = (-(2**63), -(2**62), -1, 0, 2**31, 2**53, 2**53 + 1, 2**60, 2**62, 2**63 - 1, 2**64 - 1, 10**40)
FLOATS = (math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324)
TEXTS = ("", "\x00\x1b[2J", "x" * 2000, "ß" * 300_000)
ODD: tuple[Any, ...] = (None, True, b"\xff", [], {}, [[[]]], {"": {"": math.nan}}, *INTEGERS, *FLOATS, *TEXTS)
NO_EVENTS = (
    b"", b"\xc1", b"{", b"[1]", b"null", b"\x81\xa4kind\xa5Round", b'{"events": [{}]}', b'{"events": 7}',
    b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000, b"[" * 100_000,
)  # fmt: skip
"""Bodies that no kind has."""


def document_of(state: State, cls: type[k.Event], name: str = "run") -> dict[str, Any]:
    """Return an event of this kind that the fold would act on: about this app, if it has a place."""
    app = state.find_app(name)
    assert app is not None
    known = {
        "app": app.id, "generation": app.generation, "slot": 0, "node": app.generations[app.generation].containers[0].node,
        "submission": "someone.later", "from_generation": app.generation, "to_generation": app.generation + 1,
        "epoch": state.epoch, "basis": state.seq, "ports": [20000, 20999], "port": 20100, "master_port": 20101,
        "capacity": {"cpu": 4000}, "address": "a", "step": 12, "policy": "static", "adjustment": "restart", "every": 1,
        "name": "ant", "command": ["work"], "demand": {"cpu": 1},
    }  # fmt: skip
    return {"kind": cls.__name__, **_plain(cls, known)}


def _plain(cls: type[Any], known: dict[str, Any]) -> dict[str, Any]:
    made = {}
    for field in mi.type_info(cls).fields:  # type: ignore[attr-defined]  # it is a StructType
        if field.required or field.name in known:
            made[field.encode_name] = known[field.name] if field.name in known else _any(field.type, known)
    return made


def _any(info: mi.Type, known: dict[str, Any]) -> Any:
    match info:
        case mi.Metadata(type=inner):
            return _any(inner, known)
        case mi.UnionType(types=types):
            return _any(types[0], known)
        case mi.StructType(cls=cls):
            return _plain(cls, known)
        case mi.ListType(item_type=item):
            return [_any(item, known)] if isinstance(item, mi.StructType) else []
        case mi.DictType(value_type=value):
            return {known.get("app", "x"): _any(value, known)}
        case mi.LiteralType(values=values):
            return values[0]
        case mi.BoolType():
            return False
        case mi.StrType():
            return "text"
        case mi.IntType(ge=low) | mi.FloatType(ge=low):
            return low or 0
    return None


def poisoned(cls: type[Any], document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with each of its fields, one at a time, at each of its extremes."""
    for field in mi.type_info(cls).fields:  # type: ignore[attr-defined]
        if field.name != "events":
            for value in _extremes(field.type, document.get(field.encode_name)):
                yield {**document, field.encode_name: value}


def _extremes(info: mi.Type, plain: Any) -> Iterator[Any]:
    match info:
        case mi.Metadata(type=inner):
            yield from _extremes(inner, plain)
        case mi.UnionType(types=types):
            for one in types:
                yield from _extremes(one, plain)
        case mi.IntType(ge=low, le=high):
            yield from INTEGERS
            yield from (bound for bound in (low, high) if bound is not None)
        case mi.FloatType(ge=low, le=high):
            yield from (*FLOATS, 10**40)
            yield from (bound for bound in (low, high) if bound is not None)
        case mi.StrType():
            yield from TEXTS
        case mi.AnyType():
            yield from ODD
            yield from ({"name": "ant", "command": ["a"], "demand": {"cpu": 1}, "n_max": odd} for odd in ODD)
        case mi.LiteralType():
            yield "no such word"
        case mi.ListType(item_type=item):
            yield from ([one] for one in _extremes(item, plain[0] if plain else None))
        case mi.TupleType(item_types=items):
            for index, item in enumerate(items):
                whole = list(plain or (1 for _ in items))
                for one in _extremes(item, whole[index]):
                    yield [*whole[:index], one, *whole[index + 1 :]]
        case mi.DictType(key_type=key, value_type=value):
            yield from ({name: 1} for name in _extremes(key, None))
            label, held = next(iter((plain or {}).items()), ("cpu", None))
            yield from ({label: one} for one in _extremes(value, held))
        case mi.StructType(cls=cls):
            yield from poisoned(cls, plain if isinstance(plain, dict) else _plain(cls, {}))


def bodies_of(document: dict[str, Any]) -> Iterator[bytes]:
    with contextlib.suppress(OverflowError, ValueError):  # An integer that MessagePack can't hold.
        yield msgspec.msgpack.encode(document)
    with contextlib.suppress(TypeError):  # Bytes.
        yield json.dumps(document).encode()


def subject_of(cluster: str, cls: type[k.Event], who: str) -> str:
    """Return the subject on which this kind is believed, as facts of a master within a round."""
    if cls in FACTS or cls is k.Round:
        return subjects.rounds(cluster)
    return subjects.fact(cluster, cls.__name__, who)


def wrapped(cls: type[k.Event], poison: dict[str, Any], *, epoch: int, basis: int) -> dict[str, Any]:
    """Return the document as it is published: a master's fact inside of a round that is not void."""
    if cls is k.Round:
        return {**poison, "events": [{"kind": "MasterElected", "epoch": poison["epoch"]}]}
    if cls in FACTS:
        return {"kind": "Round", "epoch": epoch, "basis": basis, "allocated": False, "events": [poison]}
    return poison
