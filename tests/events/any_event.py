"""Hypothesis strategies for every kind of event, made from the classes themselves, so that a new kind is tested at once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as mi

from events import subjects
from events.kinds import Event, MasterFact, Published, Round, Unknown
from events.log.records import Record
from events.spec import AppSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

PUBLISHED: tuple[type[Event], ...] = get_args(Published)
MASTER_FACTS: tuple[type[Event], ...] = get_args(MasterFact)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
PLAIN: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INT | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
"""What both MessagePack and JSON can carry."""


def instances(cls: type[Any]) -> SearchStrategy[Any]:
    """Instances of a msgspec struct with any valid values."""
    fields = {}
    for field in mi.type_info(cls).fields:  # type: ignore[attr-defined]  # it is a StructType
        fields[field.name] = st.just(1) if field.name == "v" and issubclass(cls, Event) else _of(field.type)
    return st.builds(cls, **fields)


@lru_cache
def _cached(cls: type[Any]) -> SearchStrategy[Any]:
    return instances(cls)


def _of(info: mi.Type) -> SearchStrategy[Any]:
    match info:
        case mi.AnyType():
            return PLAIN
        case mi.NoneType():
            return st.none()
        case mi.BoolType():
            return st.booleans()
        case mi.IntType(ge=low, le=high):
            return st.integers(low if low is not None else -(2**63), high if high is not None else 2**63 - 1)
        case mi.FloatType(ge=low, le=high):
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case mi.StrType(pattern=str(pattern)):
            return st.from_regex(pattern.replace("$", r"\Z"))
        case mi.StrType(min_length=low, max_length=high):
            most = min(20, high) if high is not None else 20
            return st.text(st.characters(codec="utf-8"), min_size=low or 0, max_size=max(most, low or 0))
        case mi.LiteralType(values=values):
            return st.sampled_from(values)
        case mi.Metadata(type=inner):
            return _of(inner)
        case mi.ListType(item_type=item, min_length=low) | mi.VarTupleType(item_type=item, min_length=low):
            return st.lists(_of(item), min_size=low or 0, max_size=max(3, low or 0))
        case mi.TupleType(item_types=items):
            return st.tuples(*map(_of, items))
        case mi.DictType(key_type=key, value_type=value, min_length=low):
            return st.dictionaries(_of(key), _of(value), min_size=low or 0, max_size=max(3, low or 0))
        case mi.StructType(cls=cls):
            return st.deferred(lambda: _cached(cls))
        case mi.UnionType(types=types):
            # `Unknown` only stands in for what a reader does not know; no build writes it.
            return st.one_of(
                *(_of(one) for one in types if not (isinstance(one, mi.StructType) and one.cls is Unknown))
            )
    raise AssertionError(f"no strategy for {info}")


def events_of(*classes: type[Event]) -> SearchStrategy[Event]:
    return st.one_of(*(_cached(cls) for cls in classes))


def specs() -> SearchStrategy[AppSpec]:
    return _cached(AppSpec)


def subject_of(kind: type[Event]) -> str:
    return subjects.rounds("c") if kind is Round else subjects.fact("c", kind.__name__, "who")


def record_of(event: Event, body: bytes) -> Record:
    return Record(7, 1_000, subject_of(type(event)), body, "msg-7")


def filled(event: Event) -> Event:
    """What decoding makes of an event that lacks what the log knows."""
    who = subjects.who_of(subject_of(type(event)))
    return msgspec.structs.replace(event, id=event.id or "msg-7", at=event.at or 1_000, by=event.by or who)
