"""What follows from the kinds of events: a server's configuration, tenants' views, logs and events under pseudonyms.

python -m tests.kinds.golden             print this build's digests
python -m tests.kinds.golden states      the same, with what changes with the core: to compare two builds
python -m tests.kinds.golden rewrite     record them (`golden.json`): commit it only if you understand the cause
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec import inspect as mi

from dorm.core.app import App
from dorm.core.state import SCHEMA, Node, State, Submission
from dorm.security.folder import Key, accounts
from events import kinds as k
from events.archive.segments import open_archive
from events.identities import Identities
from events.spec import AppSpec, check_spec
from replay.export.anonymize import anonymized
from replay.export.disguise import Disguise
from replay.tenants.hiding import Hiding
from replay.tenants.names import Names
from replay.tenants.projection import Projection
from tests.golden.made import archives
from tests.replay.tenants.lives import Life

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.log.interface import ReadableLog
    from events.log.records import Record

GOLDEN = Path(__file__).with_name("golden.json")
KINDS = sorted({*get_args(k.Published), *get_args(k.MasterFact)}, key=lambda cls: cls.__name__)
PARTS = (App, Node, Submission, Identities, State)
_STRANGER = "stranger"
_KEY = b"k" * 32


def made(*, states: bool = False) -> dict[str, Any]:
    """`states`: with states and with logs that this build decides, which a later version of the core may change."""
    parts = (AppSpec, *PARTS) if states else (AppSpec,)
    return {
        "core": SCHEMA,
        "configuration": _digest([configuration()]),
        "disguised": {cls.__name__: _digest([repr(disguised(cls))]) for cls in (*KINDS, *parts)},
        "hidden": {cls.__name__: _digest([repr(hidden(cls))]) for cls in (*KINDS, *parts) if cls is not State},
        "views": {name: _digest(views(records, states=states)) for name, records in logs(lives=states).items()},
        "anonymized": asyncio.run(_anonymized()),
    }


def _digest(parts: Iterable[str | bytes]) -> str:
    total = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


# --- the server ---------------------------------------------------------------------------------------------------------


def configuration() -> str:
    roles = ("reader", "user", "operator", "api", "node", "master", "joining", "admin", "restorer")
    named = [("reader", "backup", ""), ("reader", "webhooks", ""), ("user", "ann", "lab")]
    everyone = [*((role, f"{role}-1", "") for role in roles), *named]
    return accounts("demo", [Key(name, role, f"U{name}", tenant) for role, name, tenant in everyone])


# --- events with all fields ---------------------------------------------------------------------------------------------


def disguised(cls: type[Any]) -> list[Any]:
    return [Disguise(_Naming()).struct(filled(cls, text)) for text in ("some text", "9.3", "0" * 32)]


def hidden(cls: type[Any]) -> Any:
    return Hiding(Names(State(), _KEY)).struct(filled(cls, "some text"))


class _Naming:
    """Shows which kind of name each field holds."""

    def name(self, kind: str, name: str) -> str:
        made = f"{kind.replace('_', '')}x{_digest([name])[:8]}"
        return "KEPT" + made if kind == "variables" else made

    def request(self, text: str) -> str:
        return f"request:{text}"

    def beginning(self, prefix: str) -> list[str]:
        return [f"beginning:{prefix}"]


def spec() -> AppSpec:
    """Return a spec with most of what one can hold."""
    return check_spec(
        {
            "name": "some-app", "command": ["train", "--fast"], "demand": {"cpu": 1, "licence": 2}, "n_max": 4,
            "require": 'type == "h100" and has fast', "steps": 10, "speed_on": {"h100": [[1, 2.0]]}, "image": "image:1",
            "resume": ["resume"], "from": "other@7", "checkpoint": ["save"], "env": {"A": "b"}, "secrets": {"S": "key"},
            "python": "3.12", "requirements": ["numpy"], "setup": ["make"], "volumes": {"data": "/data"},
            "workdir": {"hash": "a" * 64}, "group": {"name": "sweep", "run": "ab", "index": 1, "count": 2, "parallel": 1},
            "hold": True, "after": ["first", {"app": "second", "when": "ended"}], "start_after": "2h",
            "max_runtime": "1h", "notify": "https://example.org/x", "user": "ann", "labels": {"team": "vision"},
        }
    ).stored()  # fmt: skip


def filled(cls: type[Any], text: str) -> Any:
    """Return a struct with a value in every field."""
    if cls is AppSpec:
        return spec()
    fields = mi.type_info(cls).fields  # type: ignore[attr-defined]  # it is a StructType
    return cls(**{field.name: _of(field.type, f"{text} {field.name}" if " " in text else text) for field in fields})


def _of(info: mi.Type, text: str) -> Any:
    match info:
        case mi.AnyType():
            return {"name": "some-app", "command": ["x"], "demand": {"cpu": 1}, "env": {"A": "b"}, "user": "ann"}
        case mi.NoneType():
            return None
        case mi.BoolType():
            return True
        case mi.IntType() | mi.FloatType():
            return 7
        case mi.StrType(max_length=most):
            return text[:most]
        case mi.LiteralType(values=values):
            return values[-1]
        case mi.Metadata(type=inner):
            return _of(inner, text)
        case mi.ListType(item_type=item):
            return [_of(item, text)]
        case mi.VarTupleType(item_type=item):
            return (_of(item, text),)
        case mi.TupleType(item_types=items):
            return tuple(_of(item, text) for item in items)
        case mi.DictType(key_type=key, value_type=value):
            return {_of(key, text): _of(value, text)}
        case mi.StructType(cls=cls):
            return spec() if cls is AppSpec else filled(cls, text)
        case mi.UnionType(types=types):
            first = next(one for one in types if not isinstance(one, mi.NoneType))
            return _of(first, text)
    raise NotImplementedError(info)


# --- logs ---------------------------------------------------------------------------------------------------------------


def logs(*, lives: bool) -> dict[str, list[Record]]:
    """Return the golden logs, and with `lives` those of clusters that know their users, which this build decides."""
    golden = {path.name: asyncio.run(_records(path)) for path in archives()}
    return golden | ({f"life-{seed}": Life(seed).play(40).records for seed in range(4)} if lives else {})


async def _records(path: Path) -> list[Record]:
    log = await open_archive(path)
    try:
        return await _read(log)
    finally:
        await log.close()


async def _read(log: ReadableLog) -> list[Record]:
    async with aclosing(log.read()) as batches:
        return [record async for batch in batches for record in batch]


def views(records: list[Record], *, states: bool) -> list[bytes]:
    """Return what each tenant reads in place of a log, and with `states` the states that these records fold to."""
    projection = Projection(State(), _KEY)
    seen = [projection.take(record) for record in records]
    state = projection.state
    tenants = sorted({*(app.tenant for app in state.apps.values()), *(state.known.users if state.known else ())})
    shown_to_all: list[bytes] = []
    for tenant in (*tenants, _STRANGER):
        for one in seen:
            shown = one.record_for(tenant)
            shown_to_all += [shown.subject.encode(), shown.body]
        if states:
            shown_to_all.append(repr(projection.state_for(tenant)).encode())
    return shown_to_all


async def _anonymized() -> dict[str, str]:
    found = {}
    for path in archives():
        log = await open_archive(path)
        try:
            parts: list[str | bytes] = []
            for keep_nodes in (False, True):
                for record in await _read(await anonymized(log, keep_nodes=keep_nodes)):
                    parts += [str(record.seq), str(record.time), record.subject, record.msg_id, record.body]
            found[path.name] = _digest(parts)
        finally:
            await log.close()
    return found


if __name__ == "__main__":
    text = json.dumps(made(states=sys.argv[1:] == ["states"]), indent=1) + "\n"
    if sys.argv[1:] == ["rewrite"]:
        GOLDEN.write_text(text)
    else:
        print(text, end="")
