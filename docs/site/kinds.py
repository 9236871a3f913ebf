"""The reference of events: every kind with its writer and its fields, from the types that decode them."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

import events.kinds
from docs.site.markdown import code, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# Events

Every event is a fact in the past tense, and each kind has exactly one writer. Bodies are MessagePack maps whose `kind` names
the kind; a client may send JSON instead. Quantities are integers in base units: milli-cores, bytes, whole devices. Times are
UTC nanoseconds. A field with a default may be left out; every other field is required.

Every kind also has the fields of `Event`.
"""
_WRITERS = {
    "user": "clients", "operator": "operators", "deliverer": "deliverers", "admin": "admins", "node": "agents",
    "master": "master",
}  # fmt: skip
"""The usual writer of a kind, as a heading."""
_DECLARATIONS = (events.kinds.Event, events.kinds.Kind)


def page() -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION, _section(events.kinds.Event, inherited=True)]
    for writer, kinds in writers().items():
        parts.append(f"## Written by {writer}")
        parts.extend(_section(getattr(events.kinds, kind)) for kind in kinds)
    parts.append("## Parts of events")
    parts.extend(_section(struct) for struct in _parts())
    return "\n\n".join(parts) + "\n"


def writers() -> dict[str, list[str]]:
    """Return who writes which kinds."""
    named: dict[str, list[str]] = {writer: [] for writer in _WRITERS.values()}
    kinds: list[type[events.kinds.Event]] = [events.kinds.Round, *events.kinds.EVENTS]
    for kind in kinds:
        named[_WRITERS[kind.KIND.writers[0]]].append(kind.__name__)
    return named


def _parts() -> Iterator[type[msgspec.Struct]]:
    for _, value in inspect.getmembers(events.kinds, inspect.isclass):
        ours = value.__module__.startswith(f"{events.kinds.__name__}.")
        if ours and issubclass(value, msgspec.Struct) and not issubclass(value, _DECLARATIONS):
            yield value


def _section(struct: type[msgspec.Struct], *, inherited: bool = False) -> str:
    base = set() if inherited else {field.name for field in msgspec.structs.fields(events.kinds.Event)}
    said = _documented(struct)
    rows = [
        (code(field.name), _type(field.type), _default(field), prose(said.get(field.name, "")))
        for field in msgspec.structs.fields(struct)
        if field.name not in base
    ]
    parts = [f"### {struct.__name__}"]
    if "__doc__" in vars(struct) and struct.__doc__:
        parts.append(prose(inspect.cleandoc(struct.__doc__)))
    parts.append(table(("field", "type", "default", "meaning"), rows) if rows else "It has no fields of its own.")
    return "\n\n".join(parts)


def _documented(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the string below each field."""
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    said = {}
    for line, below in pairwise(definition.body):
        match line, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                said[name] = inspect.cleandoc(text)
            case _:
                pass
    return said


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return code(msgspec.json.encode(field.default).decode())
    if field.default_factory is not msgspec.NODEFAULT:
        return code(msgspec.json.encode(field.default_factory()).decode())
    return "required"


def _type(annotation: Any) -> str:
    return _shown(msgspec.inspect.type_info(annotation))


def _shown(kind: msgspec.inspect.Type) -> str:
    """Return a type in JSON's terms, with its bounds."""
    match kind:
        case msgspec.inspect.Metadata():
            return _shown(kind.type)
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = "integer" if isinstance(kind, msgspec.inspect.IntType) else "number"
            bounds = [f"{sign} {bound}" for sign, bound in (("≥", kind.ge), ("≤", kind.le)) if bound is not None]
            return " ".join([name, ", ".join(bounds)]).strip()
        case msgspec.inspect.StrType():
            return "string"
        case msgspec.inspect.BoolType():
            return "boolean"
        case msgspec.inspect.NoneType():
            return "null"
        case msgspec.inspect.LiteralType():
            return ", ".join(code(msgspec.json.encode(value).decode()) for value in kind.values)
        case msgspec.inspect.DictType():
            return f"map of {_shown(kind.value_type)}"
        case msgspec.inspect.ListType():
            return f"list of {_shown(kind.item_type)}"
        case msgspec.inspect.TupleType():
            return "[" + ", ".join(_shown(item) for item in kind.item_types) + "]"
        case msgspec.inspect.UnionType():
            if all(isinstance(one, msgspec.inspect.StructType) for one in kind.types):
                return "an event of the master"
            return " or ".join(_shown(one) for one in kind.types)
        case msgspec.inspect.StructType():
            name = kind.cls.__name__
            return f"[{name}](spec.md)" if name == "AppSpec" else f"[{name}](#{name.lower()})"
        case _:
            return "any"
