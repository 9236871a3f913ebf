"""The findings of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from collections.abc import Iterable

Level = Literal["wrong", "unknown", "note", "ok"]
LEVELS: tuple[Level, ...] = ("wrong", "unknown", "note", "ok")
"""In order of severity: `wrong` needs a fix, `unknown` could not be checked, `note` is worth knowing."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Level
    check: str
    """Which check: `servers`, `quorum`, `masters`, `nodes`, `lease`, `clock`, `version`, `disk`, `settings`,
    `rotation`, `mount`, `ports`, `engine`, `folder`, `certificate`, `token`."""
    about: str
    """The server, stream, master, node or folder."""
    text: str
    todo: str = ""
    """What to do; "" for nothing."""


def ok(check: str, about: str, text: str) -> Finding:
    return Finding("ok", check, about, text)


def wrong(check: str, about: str, text: str, todo: str) -> Finding:
    return Finding("wrong", check, about, text, todo)


def note(check: str, about: str, text: str, todo: str = "") -> Finding:
    return Finding("note", check, about, text, todo)


def unknown(check: str, about: str, text: str, todo: str = "") -> Finding:
    return Finding("unknown", check, about, text, todo)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity, otherwise in their order."""
    return sorted(findings, key=lambda one: LEVELS.index(one.level))


def disk(check: str, about: str, path: str, free: int, total: int) -> Finding:
    """Judge a file system.  The log, agents and checkpoints all stop on a full one."""
    share = free / total if total else 0.0
    text = f"{humanize(MEMORY, free)} of {humanize(MEMORY, total)} are free at {path}"
    if share < SCARCE and free < PLENTY:
        return wrong(check, about, text, "make room there, or move the folder to a larger disk")
    return ok(check, about, text)


SCARCE = 0.1
"""The part of a disk that has to be free,"""
PLENTY = 20 * 2**30
"""unless this many bytes are."""
