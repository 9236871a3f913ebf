"""Every integer that comes from outside is bounded when it is decoded: on the log, beside it, and over HTTP.

The types are walked, so new fields and kinds are checked automatically."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec import inspect as mi

from dorm.api.resources.table import ROUTES
from dorm.plugins.wire import Reply
from events import kinds as k
from events.archive.blocks import Header, Index
from events.kinds import MasterFact, Published
from events.log.stores import SnapshotInfo
from events.nats.leadership import _Value
from events.requests import LogQuestion

if TYPE_CHECKING:
    from collections.abc import Iterator

QUANTITIES = {
    "AppSpec.demand",
    "AppSpec.grace",
    "AppSpec.max_runtime",
    "AppSpec.start_after",
    *(f"Retries.{name}" for name in ("backoff", "longest", "reset")),
    *(f"Deadlines.{name}" for name in ("start", "progress", "live")),
    "Utility.target",
    "Work.mini_batch",
    "Work.exchange",
    "StopSignal.before",
}
"""Numbers or texts such as `2GiB`, bounded by what reads them; the fold takes no spec without (`events.spec.can_be_read`)."""
OUTSIDE: dict[str, list[Any]] = {
    "the log": [*get_args(Published), *get_args(MasterFact), k.Unknown],
    "questions": [LogQuestion],
    "snapshots": [list[SnapshotInfo]],
    "the lease": [_Value],
    "archives": [Header, Index],
    "plug-ins": list(get_args(Reply)),
    "HTTP": [one for route in ROUTES for one in (route.query, route.body) if one is not None],
}


def integers(info: mi.Type, path: str, seen: set[type]) -> Iterator[tuple[str, mi.IntType]]:
    match info:
        case mi.IntType():
            yield path, info
        case mi.Metadata(type=inner):
            yield from integers(inner, path, seen)
        case mi.UnionType(types=several) | mi.TupleType(item_types=several):
            for one in several:
                yield from integers(one, path, seen)
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item) | mi.SetType(item_type=item):
            yield from integers(item, path, seen)
        case mi.DictType(key_type=key, value_type=value):
            yield from integers(key, path, seen)
            yield from integers(value, path, seen)
        case mi.StructType(cls=cls) if cls not in seen:
            seen.add(cls)
            for field in info.fields:
                yield from integers(field.type, f"{cls.__name__}.{field.name}", seen)


@pytest.mark.parametrize("source", OUTSIDE)
def test_no_integer_is_without_bounds(source: str) -> None:
    seen: set[type] = set()
    found = [one for kind in OUTSIDE[source] for one in integers(mi.type_info(kind), str(kind), seen)]
    assert found, "there are integers to look at"
    unbounded = sorted({path for path, info in found if info.ge is None or info.le is None} - QUANTITIES)
    assert not unbounded
    too_large = sorted({path for path, info in found if (info.le or 0) > 2**62 or (info.ge or 0) < -(2**62)})
    assert not too_large, "the sum of two is more than 64 bits"


def test_an_unbounded_integer_would_be_noticed() -> None:
    inner: Any = msgspec.defstruct("Inner", [("count", int)])
    outer: Any = msgspec.defstruct("Outer", [("by_name", dict[str, list[tuple[inner, bool]]])])
    assert [path for path, _ in integers(mi.type_info(outer), "", set())] == ["Inner.count"]
