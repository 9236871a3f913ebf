"""The findings of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from events.requests import Disk

Level = Literal["wrong", "unknown", "note", "ok"]
LEVELS: tuple[Level, ...] = ("wrong", "unknown", "note", "ok")
"""Levels in order of severity: `wrong` needs a fix, `unknown` could not be checked, `note` is worth knowing."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Level
    check: str
    """Name of the check: `servers`, `quorum`, `masters`, `nodes`, `lease`, `clock`, `version`, `disk`, `settings`,
    `rotation`, `mount`, `ports`, `engine`, `folder`, `inodes`, `processes`, `starts`, `certificate`, `token`."""
    about: str
    """The server, stream, master, node or folder."""
    text: str
    todo: str = ""
    """Advice; "" for none."""


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
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def disk(check: str, about: str, path: str, free: int, total: int) -> Finding:
    """Judge a file system.  The log, agents and checkpoints all stop on a full one."""
    share = free / total if total else 0.0
    text = f"{humanize(MEMORY, free)} of {humanize(MEMORY, total)} are free at {path}"
    if share < SCARCE and free < PLENTY:
        return wrong(check, about, text, "make room there, or move the folder to a larger disk")
    return ok(check, about, text)


def disks(about: str, seen: Disk) -> Iterator[Finding]:
    """Judge a file system in all respects in which it may refuse a file."""
    yield disk("disk", about, seen.path, seen.free, seen.total)
    if seen.read_only:
        todo = "see why it is read-only (`dmesg`), and mount it writable"
        yield wrong("folder", about, f"the file system of {seen.path} is read-only", todo)
    if seen.inodes and seen.inodes_free < min(LEAST_INODES, seen.inodes * SCARCE):
        text = f"{seen.inodes_free:,} of {seen.inodes:,} inodes are free at {seen.path}, so few more files can be made"
        yield wrong("inodes", about, text, "remove small files there (`df -i`), or move the folder to another disk")


def processes(about: str, free: int, most: int, of: str) -> Finding:
    """Judge how many processes an agent may still start."""
    text = f"{free:,} of {most:,} processes are left to its agent by {of}"
    if free < min(LEAST_PROCESSES, most * SCARCE):
        todo = "raise that limit (TasksMax of its unit, `ulimit -u`, kernel.threads-max), or end what runs there"
        return wrong("processes", about, text, todo)
    return ok("processes", about, text)


LEAST_INODES = 10_000
LEAST_PROCESSES = 200
"""Number of processes that have to be free, or a tenth of all, if that is less."""
SCARCE = 0.1
"""The part of a disk that has to be free,"""
PLENTY = 20 * 2**30
"""unless this many bytes are."""
