"""Types of fields that say what they hold, for readers who need to know it without knowing the field.

A field's type says whether it holds the name of an app, free text that people or programs wrote, or a word of the core's
own.  What an export under pseudonyms replaces, keeps and withholds follows from that (`replay.export.disguise`), and so
does what other tenants see (`replay.tenants.hiding`).  A text whose type says nothing counts as something that must not be
shown, so a new field reveals nothing until it has one of these types.  A `Literal` needs no mark: it holds the core's words.

The mark costs nothing when a body is encoded or decoded: msgspec only keeps it (`msgspec.Meta(extra=…)`).
"""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from events.limits import LONGEST_TEXT, Name

Holds = Literal[
    "app", "node", "user", "request", "address", "identity", "webhook", "token", "master",
    "resource", "label", "value", "requirement", "image", "argument", "variable", "setting",
    "text", "word", "own", "secret", "cause", "folder", "digest", "policy", "params", "runtime", "abilities", "secrets",
    "needs", "document", "origin", "after", "volumes", "workdir", "group", "notify",
]  # fmt: skip
"""Kinds of content that a field may have.

    app … token, master       the name of one, by which others refer to it
    resource … setting        a name or word that an app's owner or a node's operator chose
    text                      free text of people or programs: it may contain anything
    word                      a word of the core's own, such as an error's code
    own                       it belongs to this record or cluster alone (an id, a key, a signature), and means nothing
                              under other names
    secret                    the digest of a secret
    cause                     a record's position, or the id of a request
    folder                    the id of a shared folder
    digest                    the digest of an app's content, which reveals nothing
    policy, params            a policy's name, and its parameters by name
    runtime, abilities        what an agent says of itself in the core's words
    secrets                   the names of secrets, by user
    document                  a spec as a client sent it
    needs                     what an app needs of a node (`dorm.core.faults`)
    origin … notify           parts of a spec, in the form in which its owner writes them
"""


def holds(what: Holds) -> msgspec.Meta:
    """Return the mark of a type."""
    return msgspec.Meta(extra={"holds": what})


AppId = Annotated[Name, holds("app")]
"""An app's id."""
AppName = Annotated[Name, holds("app")]
"""An app as its owner calls it: its name, or its id."""
NodeId = Annotated[Name, holds("node")]
UserName = Annotated[Name, holds("user")]
"""A user or a tenant."""
RequestId = Annotated[Name, holds("request")]
"""Id of a submission, an update, an edit or a restart."""
WebhookName = Annotated[Name, holds("webhook")]
Position = Annotated[Name, holds("cause")]
"""A record's position in the log (`118.2`), or the id of a request."""
FreeText = Annotated[str, holds("text")]
CutText = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT), holds("text")]
"""Free text of bounded length."""
CoreWord = Annotated[str, holds("word")]
Code = Annotated[str, msgspec.Meta(max_length=64), holds("word")]
"""A stable code, such as an error's."""
Own = Annotated[str, holds("own")]
AppKey = Annotated[str, holds("app")]
NodeKey = Annotated[str, holds("node")]
UserKey = Annotated[str, holds("user")]
TokenKey = Annotated[str, holds("token")]
ResourceKey = Annotated[str, holds("resource")]
Label = Annotated[str, holds("label")]
LabelValue = Annotated[str, holds("value")]
Argument = Annotated[str, holds("argument")]
"""A part of a command line."""
PolicyName = Annotated[str, holds("policy")]
Params = Annotated[dict[str, Any], holds("params")]
"""A policy's parameters."""
SpecDocument = Annotated[Any, holds("document")]
"""A spec as its client sent it."""


@cache
def types_of(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a struct's fields, with their marks."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls.__struct_fields__}


def held_in(kind: Any) -> Holds | None:
    """Return what a type says that it holds; None if it says nothing."""
    for mark in reversed(getattr(kind, "__metadata__", ())):
        if isinstance(mark, msgspec.Meta) and mark.extra and "holds" in mark.extra:
            return typing.cast("Holds", mark.extra["holds"])
    return "word" if get_origin(unmarked(kind)) is Literal else None


def is_silent(kind: Any) -> bool:
    """Return whether a type has text of which it does not say what it holds, also in parts of it."""
    if held_in(kind) is not None:
        return False
    kind = unmarked(kind)
    if kind in (str, bytes, Any):
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(map(is_silent, types_of(kind).values()))
    return any(map(is_silent, get_args(kind)))


def unmarked(kind: Any) -> Any:
    """Return a type without its marks and bounds."""
    return kind.__origin__ if get_origin(kind) is Annotated else kind


def without_none(kind: Any) -> Any:
    """Return a type without None and `UNSET`, if another one is left."""
    absent = (type(None), msgspec.UnsetType)
    others = [arg for arg in get_args(kind) if arg not in absent]
    return others[0] if len(others) == 1 < len(get_args(kind)) and get_origin(kind) in _UNIONS else kind


_UNIONS = (typing.Union, types.UnionType)
