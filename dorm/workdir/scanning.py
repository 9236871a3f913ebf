"""Which entries a project folder has: within the cluster's limits, in order, and without anything that nodes cannot lay out.

A folder that is too large is refused before any file is read, with the names of its largest folders.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.workdir.errors import Unshippable
from dorm.workdir.ignoring import OWN, VENV, Ignored
from events.quantities import MEMORY, humanize
from events.workdir.manifest import link_fault, path_fault

if TYPE_CHECKING:
    from pathlib import Path

    from events.workdir import Limits

_COUNTED_ON_S = 2.0
"""Seconds for which counting continues in a folder that is too large, to name its largest parts."""
_NAMED = 3
_SPECIAL = (
    (stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISBLK, "a device"), (stat.S_ISCHR, "a device"),
)  # fmt: skip
_INSTEAD = f"leave out what is not needed by lines in {OWN}, which has the rules of .gitignore"


class Status(NamedTuple):
    """What shows that a file has changed."""

    size: int
    """Bytes."""
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Status:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class FoundFile(NamedTuple):
    path: str
    executable: bool
    status: Status


class FoundLink(NamedTuple):
    path: str
    target: str


class FoundFolder(NamedTuple):
    """An empty folder."""

    path: str


Found = FoundFile | FoundLink | FoundFolder


class Scanned(msgspec.Struct, frozen=True):
    """A folder's entries, sorted by path."""

    entries: list[Found]
    left_out: list[str]
    """Entries that are not files and were left out without a rule, in words."""


def scan(root: Path, limits: Limits) -> Scanned:
    """Return a folder's entries.  Blocks.  Raises Unshippable."""
    if not root.is_dir():
        what = "no folder" if root.exists() else "not there"
        raise Unshippable(f"{root}: it is {what}; name the project's folder", code="workdir.not_a_folder")
    found = _Scan(root, limits)
    found.folder(root, "", Ignored.of(root))
    if found.over:
        raise found.refusal()
    return Scanned(sorted(found.entries, key=lambda entry: entry.path), found.left_out)


class _Scan:
    """One scan of a folder."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self.entries: list[Found] = []
        self.left_out: list[str] = []
        self.over = ""
        """Which limit is exceeded, in words; "" for none."""
        self._code = ""
        self._sizes: dict[str, int] = defaultdict(int)
        """Bytes by the first part of the path, and by the first two."""
        self._counts: dict[str, int] = defaultdict(int)
        self._total = 0
        self._count = 0
        self._until = 0.0

    def folder(self, folder: Path, path: str, ignored: Ignored) -> None:
        """Walk through one folder and those in it.  Raises Unshippable."""
        for entry in self._listed(folder):
            if self.over and time.monotonic() > self._until:
                return
            within = f"{path}/{entry.name}" if path else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if ignored.leaves_out(within, folder=is_folder):
                continue
            if fault := path_fault(within):
                raise Unshippable(f"{within!r} {fault}; rename it, or {_INSTEAD}", code="workdir.path.malformed")
            if is_folder:
                self._inner(folder / entry.name, within, ignored)
            else:
                self._entry(entry, within)

    def _listed(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise Unshippable(f"{folder}: {error.strerror}; {_INSTEAD}", code="workdir.file.unreadable") from None

    def _inner(self, folder: Path, path: str, ignored: Ignored) -> None:
        if (folder / VENV).exists():
            return
        before = self._count
        self.folder(folder, path, ignored.below(folder, path))
        if self._count == before:
            self._note(FoundFolder(path), 0)

    def _entry(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            if entry.is_symlink():
                self._link(path)
                return
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            raise Unshippable(f"{path}: {error.strerror}; {_INSTEAD}", code="workdir.file.unreadable") from None
        special = next((what for is_one, what in _SPECIAL if is_one(status.st_mode)), "")
        if special:
            self.left_out.append(f"{path} is {special} and is left out")
            return
        if status.st_size > self._limits.file and not self.over:
            self._exceed(
                f"{path} has {_size(status.st_size)}, and the cluster takes files of at most {_size(self._limits.file)}",
                "workdir.file.too_large",
            )
        self._note(FoundFile(path, bool(status.st_mode & 0o111), Status.of(status)), status.st_size)

    def _link(self, path: str) -> None:
        target = os.readlink(self._root / path)
        if fault := link_fault(path, target):
            raise Unshippable(
                f"{path} {fault}, so nodes can't have it: put what it leads to into the folder, or {_INSTEAD}",
                code="workdir.link.leads_out",
            )
        self._note(FoundLink(path, target), 0)

    def _note(self, entry: Found, size: int) -> None:
        first, _, rest = entry.path.partition("/")
        for part in (first, f"{first}/{rest.partition('/')[0]}") if "/" in rest else (first,):
            self._sizes[part] += size
            self._counts[part] += 1
        self._total += size
        self._count += 1
        if self.over:
            return
        self.entries.append(entry)
        if self._total > self._limits.total:
            self._exceed(
                f"its files have more than {_size(self._limits.total)}, which is the most that the cluster takes",
                "workdir.too_large",
            )
        elif self._count > self._limits.count:
            self._exceed(
                f"it has more than {self._limits.count:,} files, which is the most that the cluster takes",
                "workdir.too_many_files",
            )

    def _exceed(self, why: str, code: str) -> None:
        self.over, self._code = why, code
        self._until = time.monotonic() + _COUNTED_ON_S

    def refusal(self) -> Unshippable:
        """Return the error, with the largest parts of the folder."""
        by_count = self._code == "workdir.too_many_files"
        amounts = self._counts if by_count else self._sizes
        largest = sorted(amounts, key=lambda part: (-amounts[part], part))
        # A folder that contains only one folder says less than the inner one.
        shown = [
            part
            for part in largest
            if not any(amounts[one] == amounts[part] for one in largest if one.startswith(f"{part}/"))
        ]
        named = ", ".join(
            f"{part} ({_files(amounts[part]) if by_count else _size(amounts[part])})" for part in shown[:_NAMED]
        )
        complete = time.monotonic() <= self._until
        seen = f"{'in all' if complete else 'more than'} {_size(self._total)} in {self._count:,} files"
        return Unshippable(
            f"{self._root}: {self.over}; {seen}, most of it in {named}: {_INSTEAD}, or run without it (--no-workdir)",
            code=self._code,
        )


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _size(amount: int) -> str:
    return humanize(MEMORY, amount)
