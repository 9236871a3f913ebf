"""Which entries a project folder has: within the cluster's limits, in order, and without anything that nodes cannot lay out.

A folder that is too large is refused before any file is read, with the names of its largest folders.  What is left out is
listed with its reason; its files are counted too, for a bounded time.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dorm.workdir.errors import Unshippable
from dorm.workdir.ignoring import OWN, Answer, Entry, Ignored, judged
from events.quantities import MEMORY, humanize
from events.workdir import link_fault, path_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.workdir import Limits

_COUNTED_ON_S = 2.0
"""Seconds for which counting continues in a folder that is too large, to name its largest parts."""
_NAMED = 3
_AT_ONCE = 4096
"""About how many entries are judged at once: each time is a question to git."""
_MEASURED_S = 0.25
"""Seconds for which the files of what is left out are counted."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""A folder with one of these is an environment of Python's or conda's, whose paths and programs are of this machine."""
_SPECIAL = (
    (stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISBLK, "a device"), (stat.S_ISCHR, "a device"),
)  # fmt: skip
_INSTEAD = f"leave out what is not needed by lines in {OWN}, which has the rules of .gitignore"
VOLUMES = "nodes can offer large data as a volume (`volumes:`, --volume)"


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


class Left(msgspec.Struct, frozen=True):
    """An entry that is left out."""

    path: str
    """Path within the shipped folder; a folder's ends with `/`."""
    kind: Literal["rule", "environment", "cache", "link", "special"]
    """Cause: a line of a file with patterns; an environment; a name such as `__pycache__`; a link that leads out;
    something that is neither a file, nor a folder, nor a link."""
    source: str = ""
    """File that has the rule, for a rule."""
    why: str = ""
    """The rule as `FILE:LINE: PATTERN`, or what is wrong with a link, or what the entry is."""
    files: int = 0
    size: int = 0
    """Bytes."""
    complete: bool = True
    """Whether all its files were counted; otherwise, it has more."""


class Scanned(msgspec.Struct, frozen=True):
    """A folder's entries, sorted by path."""

    entries: list[Found]
    left_out: list[Left]
    """Sorted by path.  Of an ignored folder in which git tracks some files, the others."""
    notes: list[str]
    """Notes for its owner."""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.status.size for entry in self.entries if isinstance(entry, FoundFile))


def scan(root: Path, limits: Limits) -> Scanned:
    """Return a folder's entries, and what is left out.  Blocks.  Raises Unshippable."""
    if not root.is_dir():
        what = "no folder" if root.exists() else "not there"
        raise Unshippable(f"{root}: it is {what}; name the project's folder", code="workdir.not_a_folder")
    scanning = _Scan(root, limits)
    scanning.run()
    if scanning.over:
        raise scanning.refusal()
    left_out = _measured(scanning.root, scanning.left_out, scanning.tracked)
    return Scanned(sorted(scanning.entries, key=lambda entry: entry.path), left_out, scanning.notes)


class _Inner(NamedTuple):
    """A folder whose content is to be looked at."""

    path: str
    """Within the shipped folder, "" for itself."""
    ignored: Ignored
    """The rules for its content."""


class _Scan:
    """One scan of a folder."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root = root.resolve()
        self._named = root
        self._limits = limits
        self.entries: list[Found] = []
        self.left_out: list[Left] = []
        self.notes: list[str] = []
        self.tracked: set[str] = set()
        """Files that are shipped out of folders that are left out."""
        self._folders: list[str] = []
        self.over = ""
        """Sentence about the limit that is exceeded; "" for none."""
        self._code = ""
        self._sizes: dict[str, int] = defaultdict(int)
        """Bytes by the first part of the path, and by the first two."""
        self._counts: dict[str, int] = defaultdict(int)
        self._total = 0
        self._count = 0
        self._until = 0.0

    def run(self) -> None:
        """Walk through all folders, several of one depth at a time.  Raises Unshippable."""
        ignored = Ignored.of(self.root)
        waiting, ahead = [_Inner("", ignored)], list[_Inner]()
        while waiting:
            listed: list[tuple[_Inner, os.DirEntry[str], Entry]] = []
            while waiting and len(listed) < _AT_ONCE:
                inner = waiting.pop()
                prefix = f"{inner.path}/" if inner.path else ""
                listed += [
                    (inner, found_entry, Entry(prefix + found_entry.name, found_entry.is_dir(follow_symlinks=False)))
                    for found_entry in self._listed(inner.path)
                ]
            answers = judged([(inner.ignored, entry) for inner, _, entry in listed])
            for (inner, found_entry, entry), answer in zip(listed, answers, strict=True):
                if self.over and time.monotonic() > self._until:
                    return
                ahead += self._found(found_entry, entry, answer, inner.ignored)
            if not waiting:
                waiting, ahead = ahead[::-1], []
        self.notes += ignored.notes
        self._note_empty_folders()

    def _found(self, listed: os.DirEntry[str], entry: Entry, answer: Answer, ignored: Ignored) -> Iterable[_Inner]:
        """Take an entry, or leave it out; return the folders that are to be looked at for it."""
        path = entry.path
        if entry.folder and any((self.root / path / name).exists() for name in _ENVIRONMENTS):
            self.left_out.append(Left(f"{path}/", "environment", why="an environment"))
            return ()
        if answer.by_name or answer.rule is not None:
            shown = f"{path}/" if entry.folder else path
            if answer.rule is not None:
                self.left_out.append(Left(shown, "rule", answer.rule.source, str(answer.rule)))
            else:
                self.left_out.append(Left(shown, "cache", why="left out by its name"))
            return self._tracked_only(path, ignored) if answer.tracked else ()
        self._check_path(path)
        if entry.folder:
            self._folders.append(path)
            return (_Inner(path, ignored.below(self.root / path, path)),)
        self._entry(listed, path)
        return ()

    def _check_path(self, path: str) -> None:
        if fault := path_fault(path):
            raise Unshippable(f"{path!r} {fault}; rename it, or {_INSTEAD}", code="workdir.path.malformed")

    def _tracked_only(self, folder: str, ignored: Ignored) -> Iterable[_Inner]:
        """Take the files of a folder that git tracks although it ignores the folder; the others are not even listed."""
        real: dict[Path, bool] = {}
        for path in ignored.tracked_in(folder):
            place = self.root / path
            if ignored.leaves_out(path) is not None or not self._in_real_folders(place, real):
                continue
            try:
                is_folder = stat.S_ISDIR(place.lstat().st_mode)
            except OSError:
                continue  # It is in the index only.
            self._check_path(path)
            if is_folder:
                self._folders.append(path)
                yield _Inner(path, ignored.below(place, path))
            else:
                self.tracked.add(path)
                self._entry(place, path)

    def _in_real_folders(self, place: Path, real: dict[Path, bool]) -> bool:
        """Return whether no folder between the shipped one and an entry is a link; `real` remembers."""
        parent = place.parent
        if parent == self.root:
            return True
        if parent not in real:
            real[parent] = not parent.is_symlink() and self._in_real_folders(parent, real)
        return real[parent]

    def _note_empty_folders(self) -> None:
        """Take the folders in which nothing is shipped."""
        filled: set[str] = set()
        for path in [entry.path for entry in self.entries]:
            while (path := path.rpartition("/")[0]) and path not in filled:
                filled.add(path)
        for path in sorted(self._folders, key=lambda path: -path.count("/")):
            if path not in filled:
                self._note(FoundFolder(path), 0)
                filled.add(path.rpartition("/")[0])

    def _listed(self, path: str) -> list[os.DirEntry[str]]:
        folder = self.root / path
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise Unshippable(f"{folder}: {error.strerror}; {_INSTEAD}", code="workdir.file.unreadable") from None

    def _entry(self, entry: os.DirEntry[str] | Path, path: str) -> None:
        try:
            if entry.is_symlink():
                self._link(path)
                return
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            raise Unshippable(f"{path}: {error.strerror}; {_INSTEAD}", code="workdir.file.unreadable") from None
        special = next((what for is_one, what in _SPECIAL if is_one(status.st_mode)), "")
        if special:
            self.left_out.append(Left(path, "special", why=special))
            return
        if status.st_size > self._limits.file and not self.over:
            self._exceed(
                f"{path} has {_size(status.st_size)}, and the cluster takes files of at most {_size(self._limits.file)}",
                "workdir.file.too_large",
            )
        self._note(FoundFile(path, bool(status.st_mode & 0o111), Status.of(status)), status.st_size)

    def _link(self, path: str) -> None:
        target = os.readlink(self.root / path)
        within = target if not link_fault(path, target) else _within(self.root, path, target)
        if within is None or (fault := link_fault(path, within)):
            self.left_out.append(Left(path, "link", why=f"a link to {target}" if within is None else fault))
        else:
            self._note(FoundLink(path, within), 0)

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
            if not any(amounts[inner] == amounts[part] for inner in largest if inner.startswith(f"{part}/"))
        ]
        named = ", ".join(
            f"{part} ({_files(amounts[part]) if by_count else _size(amounts[part])})" for part in shown[:_NAMED]
        )
        complete = time.monotonic() <= self._until
        seen = f"{'in all' if complete else 'more than'} {_size(self._total)} in {self._count:,} files"
        data = "" if by_count else f"; {VOLUMES}"
        return Unshippable(
            f"{self._named}: {self.over}; {seen}, most of it in {named}: {_INSTEAD}, or run without it (--no-workdir){data}",
            code=self._code,
        )


def _within(root: Path, path: str, target: str) -> str | None:
    """Return the target of a link within the shipped folder as a path relative to the link, None if it leads out.  It may be
    missing, or a link itself."""
    place = root / path
    aim = Path(os.path.realpath((place.parent / target).parent)) / os.path.basename(target.rstrip("/"))
    aim = Path(os.path.normpath(aim))
    return os.path.relpath(aim, place.parent) if aim == root or root in aim.parents else None


def _measured(root: Path, left_out: list[Left], without: set[str]) -> list[Left]:
    """Return the entries with their files counted, but `without` these; as incomplete if there is no time for all.  Caches are
    not counted: nobody misses them."""
    until = time.monotonic() + _MEASURED_S
    measured = []
    # What a rule leaves out first: an environment is never data that somebody misses.
    for left in sorted(left_out, key=lambda left: left.kind != "rule"):
        if left.kind in ("rule", "environment"):
            files, size, complete = _counted(root, left.path, without, until)
            left = msgspec.structs.replace(left, files=files, size=size, complete=complete)
        measured.append(left)
    return sorted(measured, key=lambda left: left.path)


def _counted(root: Path, path: str, without: set[str], until: float) -> tuple[int, int, bool]:
    """Return how many files an entry has, their bytes, and whether these are all.  What can't be read counts as nothing."""
    files = size = 0
    waiting = [path.removesuffix("/")]
    try:
        if not path.endswith("/"):
            return 1, (root / path).lstat().st_size, True
    except OSError:
        return 1, 0, True
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if time.monotonic() > until:
                        return files, size, False
                    inner = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(inner)
                    elif inner not in without:
                        files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return files, size, True


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _size(amount: int) -> str:
    return humanize(MEMORY, amount)
