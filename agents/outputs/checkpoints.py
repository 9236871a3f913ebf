"""Checkpoints as agents handle them: which files can be believed, and how another app starts from them.

*Belief.*  The files that count are those that have not changed since the app last reported a checkpoint.

A container that is killed may have been writing a checkpoint.  Its file is then incomplete, under the name of a
complete one.  So each time that an agent reads a `checkpoint` line, it notes size and time of every file in the app's
folder.  After a container's end, and before the next generation starts, the files are compared with that note:

    changed     a file of the note with another size or a later time, or one that is gone
    new         a file that the note lacks

Both are in doubt, except files that hold no state of a training: logs, tables, pictures and other files of the
suffixes below; a file that only grows from one report to the next (a log of any name); and temporary ones, by their
names: a program that writes to a temporary name and renames the complete file leaves at most those behind.  Links are
pointers, not checkpoints.

No clocks are compared: both times are the file server's.  A time before the noted one is an older version: an
attribute that a network file system still has in its cache, or a copy that someone put back.  Inodes are not compared,
since those of some file systems differ between nodes.  The note is in the shared folder, where containers can't write,
so every node can compare: also the next generation's, if the node of the last one was lost.  The files are the app's,
which may put anything there: at most `MOST_FILES` entries are looked at, no link is followed, no file is opened.  What
can't be looked at is unknown, and not in doubt.

**Falling back.**  Files in doubt can be set aside if all of them are new, each has a complete one before it with the
same name but for its numbers (`step-40.pt` after `step-30.pt`), and no link leads to them.  They are moved, never
deleted.

*Origins.*  An app that starts from another one's checkpoint gets a copy of it, before its first container starts.

The copy gets its name only once it is complete, so a container always finds a complete one.  Each node that starts one
makes a copy, and the first that is complete counts.  Its digest is noted beside the app's files, where no container
can write.

    digest    SHA-256 over a line for each entry, sorted by path: its path as JSON, a space, `folder`, or `file` or `program`
              (one that can be executed) with the SHA-256 of its content

Every function blocks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from agents.outputs.files import FilesError, folder_for, listed, opened
from agents.outputs.folders import APPS, is_app
from agents.runtime.interface import Refused
from agents.runtime.removing import delete
from events.copying import BLOCK, blocks_of, write_at
from events.kinds import LONGEST_DOUBTED, MOST_DOUBTED, Doubt
from events.limits import clipped
from events.spec.gates import origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from events.copying import FileEntry
    from events.spec.gates import Origin


# --- which files can be believed --------------------------------------------------------------------------------------

MOST_FILES: Final = 5000
"""Entries of a folder that are looked at; one with more is unknown."""
MOST_DEPTH: Final = 16
MOST_TEXT: Final = 2 * 1024 * 1024
"""Bytes of all their paths, which are in the note that each report writes again."""
ASIDE: Final = ".doubtful"
"""The folder, in the app's, of files that were set aside: `.doubtful/generation-3`."""
_NOTE: Final = "believed"
_LARGEST_NOTE: Final = 16 * 1024 * 1024
_GROWS: Final = 1
"""Reports from one to the next of which a file has to grow, to count as one that only grows."""
_NO_STATE: Final = (
    ".log", ".jsonl", ".csv", ".tsv", ".txt", ".out", ".err", ".md", ".html", ".png", ".jpg", ".jpeg", ".svg", ".gif", ".mp4",
    ".wav", ".pdf", ".pid",
)  # fmt: skip
_NO_STATE_FOLDERS: Final = ("wandb", "mlruns", "tensorboard", "__pycache__")
_EVENTS: Final = "events.out.tfevents"
_TEMPORARY: Final = re.compile(
    r"(?:^|[^a-z0-9])(?:tmp|partial|incomplete|inprogress)(?:[^a-z0-9]|$)|\.(?:temp|part|swp|lock)$|~$|^\.",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"[0-9]+")
_log = structlog.get_logger(__name__)


class FileNote(msgspec.Struct, frozen=True, array_like=True):
    """What identifies the content of one file without reading it."""

    size: int
    """Bytes."""
    modified: int
    """Nanoseconds, by the file server's clock."""
    grew: int = 0
    """Number of reports in a row in which it had only grown since the one before."""

    def same(self, other: FileNote) -> bool:
        return (self.size, self.modified) == (other.size, other.modified)

    def changes_into(self, later: FileNote) -> bool:
        return later.modified >= self.modified and not self.same(later)

    def grows_into(self, later: FileNote) -> bool:
        return later.size > self.size


class Listing(msgspec.Struct):
    """The files of an app's folder at one moment, by their paths."""

    files: dict[str, FileNote] = {}
    links: dict[str, str] = {}
    """Their targets, as text."""


class Note(msgspec.Struct):
    """What all nodes know of an app's files."""

    generation: int
    """The generation that reported the checkpoint."""
    files: dict[str, FileNote]
    judged: int = 0
    """The last generation before whose start the files were compared with this."""
    doubt: Doubt | None = None
    """The result."""


# --- the rule, without I/O ----------------------------------------------------------------------------------------------


def holds_state(path: str) -> bool:
    """Return whether a file of this path may be part of a checkpoint, and is not a temporary one."""
    names = path.split("/")
    if any(_TEMPORARY.search(name) or name in _NO_STATE_FOLDERS for name in names):
        return False
    last = names[-1].lower()
    return not last.endswith(_NO_STATE) and not last.startswith(_EVENTS)


def with_growth(before: Mapping[str, FileNote], now: Mapping[str, FileNote]) -> dict[str, FileNote]:
    """Return the files at a report, with how long each has only grown, given those at the report before."""
    grown = {}
    for path, note in now.items():
        was = before.get(path)
        grew = 0
        if was is not None:
            grew = was.grew if was.same(note) else was.grew + 1 if was.grows_into(note) else 0
        grown[path] = FileNote(note.size, note.modified, grew)
    return grown


def in_doubt(believed: Mapping[str, FileNote], now: Mapping[str, FileNote]) -> list[str]:
    """Return the paths of files in doubt, sorted."""
    newest: dict[str, int] = {}
    for path, was in believed.items():
        series = series_of(path)
        newest[series] = max(was.modified, newest.get(series, 0))
    paths = [path for path in now if path not in believed and holds_state(path)]
    for path, was in believed.items():
        note = now.get(path)
        if note is None:
            # Programs remove older ones by themselves, once newer ones are complete.
            changed = was.modified >= newest[series_of(path)]
        else:
            changed = was.changes_into(note) and not (was.grew >= _GROWS and was.grows_into(note))
        if changed and holds_state(path):
            paths.append(path)
    return sorted(paths)


def series_of(path: str) -> str:
    """Return a path without its numbers: the same for `step-30.pt` and `step-40.pt`."""
    return _NUMBER.sub("#", path)


def units(doubtful: Iterable[str], believed: Mapping[str, FileNote]) -> list[str]:
    """Return what the doubtful files are parts of: folders, with `/` at their end, in which the note has no file, or else the
    files themselves.  Sorted."""
    known = {path[: at + 1] for path in believed for at, letter in enumerate(path) if letter == "/"}
    units_: dict[str, None] = {}
    for path in doubtful:
        new = [path[: at + 1] for at, letter in enumerate(path) if letter == "/" and path[: at + 1] not in known]
        units_[new[0] if new and path not in believed else path] = None
    return sorted(units_)


def can_fall_back(doubtful: Iterable[str], believed: Mapping[str, FileNote], now: Listing) -> bool:
    """Return whether the app finds an earlier checkpoint once the doubtful files are set aside."""
    doubted = list(doubtful)
    if not doubted or any(path in believed for path in doubted):
        return False
    aside = units(doubted, believed)
    pointed = {target.rstrip("/").rpartition("/")[2] for target in now.links.values()}
    if any(unit.rstrip("/").rpartition("/")[2] in pointed for unit in aside):
        return False
    complete = [path for path, was in believed.items() if path in now.files and was.same(now.files[path])]
    earlier = {series_of(path[: at + 1]) for path in complete for at, letter in enumerate(path) if letter == "/"}
    earlier |= {series_of(path) for path in complete}
    return all(_NUMBER.search(unit) is not None and series_of(unit) in earlier for unit in aside)


def doubt_of(believed: Mapping[str, FileNote], now: Listing) -> Doubt | None:
    """Return what is in doubt, None if nothing is."""
    doubtful = in_doubt(believed, now.files)
    if not doubtful:
        return None
    named = units(doubtful, believed)
    return Doubt(
        files=[_shown(path) for path in named[:MOST_DOUBTED]],
        more=max(0, len(named) - MOST_DOUBTED),
        before=can_fall_back(doubtful, believed, now),
    )


def _shown(path: str) -> str:
    text = os.fsencode(path).decode("utf-8", "replace")
    return clipped("".join(character if character.isprintable() else "\ufffd" for character in text), LONGEST_DOUBTED)


# --- the files ----------------------------------------------------------------------------------------------------------


def listing(folder: Path) -> Listing | None:
    """Return what is in an app's folder; None if there is too much, or if it can't be looked at."""
    listing_, left, text, todo = Listing(), MOST_FILES, MOST_TEXT, [""]
    try:
        while todo:
            inside = todo.pop()
            with _removed_meanwhile(inside), opened(folder, inside) as here, os.scandir(here) as entries:
                for entry in islice(entries, left + 1):
                    left -= 1
                    path = f"{inside}{entry.name}"
                    text -= len(os.fsencode(path))
                    if left < 0 or text < 0 or path.count("/") > MOST_DEPTH:
                        return None
                    if not entry.name.startswith(".") and _is_text(path):
                        with contextlib.suppress(FileNotFoundError):
                            _add(listing_, todo, path, entry, here)
    except (OSError, FilesError):
        return None
    return listing_


@contextlib.contextmanager
def _removed_meanwhile(inside: str) -> Iterator[None]:
    """Programs remove an older checkpoint once a newer one is complete: that hides none of the rest."""
    try:
        yield
    except FilesError as error:
        if not inside or error.code != "files.not_found":
            raise


def _add(listing: Listing, todo: list[str], path: str, entry: os.DirEntry[str], folder: int) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        todo.append(f"{path}/")
    elif stat.S_ISREG(status.st_mode):
        listing.files[path] = FileNote(status.st_size, status.st_mtime_ns)
    elif stat.S_ISLNK(status.st_mode):
        listing.links[path] = os.fsencode(os.readlink(entry.name, dir_fd=folder)).decode("utf-8", "replace")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def noted(root: Path, app: str) -> Note | None:
    """Return what is noted of an app's files; None if there is no note that can be read."""
    if not is_app(app):
        return None
    try:
        with (root / APPS / app / _NOTE).open("rb") as file:
            return msgspec.msgpack.decode(file.read(_LARGEST_NOTE), type=Note)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def note(root: Path, app: str, generation: int) -> None:
    """Note the files of an app that has just reported a checkpoint, unless a later generation has begun.  Raises OSError."""
    before = noted(root, app)
    if not is_app(app) or (before is not None and max(before.generation, before.judged) > generation):
        return
    now = listing(root / app)
    if now is None:  # The note before would put complete files in doubt.
        (root / APPS / app / _NOTE).unlink(missing_ok=True)
        return
    files = with_growth(before.files if before is not None else {}, now.files)
    _write(root, app, Note(generation, files, before.judged if before is not None else 0))


def look(root: Path, app: str, generation: int) -> Doubt | None:
    """Return what is in doubt after a container of this generation has ended; None if nothing is, or if it is unknown."""
    known = noted(root, app)
    if known is None or max(known.generation, known.judged) > generation:
        return None
    now = listing(root / app)
    return doubt_of(known.files, now) if now is not None else None


def judge(root: Path, app: str, generation: int, *, fall_back: bool) -> Doubt | None:
    """Return what is in doubt before this generation starts, with no container of an earlier one left, and note that; with
    `fall_back` set it aside, if it can be.  The same again for the same generation.  Raises OSError."""
    known = noted(root, app)
    if known is None or known.judged >= generation:
        return known.doubt if known is not None else None
    now = listing(root / app)
    doubt = doubt_of(known.files, now) if now is not None else None
    if now is not None and doubt is not None and doubt.before and fall_back:
        moved = units(in_doubt(known.files, now.files), known.files)
        doubt = msgspec.structs.replace(doubt, aside=_set_aside(root / app, moved, generation))
    _write(root, app, Note(known.generation, known.files, generation, doubt))
    return doubt


def is_judged(root: Path, app: str, generation: int) -> bool:
    """Return whether a generation's files are judged, or can't be."""
    known = noted(root, app)
    return known is None or known.judged >= generation


def _set_aside(folder: Path, moved: Iterable[str], generation: int) -> str:
    """Move files and folders, by their paths, into a folder of their own; return where, "" if that is not possible."""
    place = f"generation-{generation}"
    try:
        for path in moved:
            *above, name = path.rstrip("/").split("/")
            with opened(folder, "/".join(above)) as source, folder_for(folder, (ASIDE, place, *above)) as target:
                with contextlib.suppress(FileNotFoundError):
                    os.stat(name, dir_fd=target, follow_symlinks=False)
                    os.rename(name, f"{name}.{secrets.token_hex(4)}", src_dir_fd=target, dst_dir_fd=target)
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except (OSError, FilesError) as error:
        _log.warning("files in doubt can't be set aside", folder=str(folder), reason=str(error))
        return ""
    return f"{ASIDE}/{place}"


def _write(root: Path, app: str, made: Note) -> None:
    aside = root / APPS / app / f".{_NOTE}.{secrets.token_hex(8)}"
    try:
        aside.write_bytes(msgspec.msgpack.encode(made))
        aside.replace(root / APPS / app / _NOTE)
    finally:
        aside.unlink(missing_ok=True)


# --- starting from another app ----------------------------------------------------------------------------------------

_STEP_NUMBER = re.compile(r"[0-9]{1,15}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ORIGIN_NOTE = "origin"


def bring(root: Path, app: str, text: str) -> str:
    """Copy the checkpoint that `from` in the app's spec names, unless the app has a folder.  Return the digest of the
    copied files, by this node or another; "" if none is noted.  Raises Refused, OSError."""
    origin = origin_of(text)
    if origin is None or (root / app).is_dir():
        return _noted_digest(root, app) if origin is not None else ""
    source = root / origin.app
    if not is_app(origin.app) or not source.is_dir():
        raise Refused(
            "spec",
            f"from: the checkpoints of {origin.app} are gone, since it ended too long ago; name another app, or none",
            code="spec.from.gone",
        )
    entries = chosen([entry for some in listed(source, "") for entry in some], origin)
    copy = root / APPS / app / f".origin-{secrets.token_hex(8)}"
    copy.mkdir(mode=0o700)
    try:
        for entry in entries:
            _copy(source, copy, entry)
        digest = digest_of(copy, entries)
        try:
            os.rename(copy, root / app)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return _noted_digest(root, app)
        _note(root, app, digest)
        return digest
    except FilesError as error:
        raise Refused("spec", f"from: {origin.app}: {error}", code=error.code) from None
    finally:
        delete(copy)


def digest_of(copy: Path, entries: Sequence[FileEntry]) -> str:
    """Return the digest of a copy of these entries, in hex."""
    lines = []
    for entry in sorted(entries, key=lambda entry: entry.path.encode("utf-8", "surrogateescape")):
        what = "folder"
        if entry.kind != "folder":
            with (copy / entry.path).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            what = f"{'program' if entry.executable else 'file'} {content}"
        lines.append(f"{json.dumps(entry.path)} {what}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _note(root: Path, app: str, digest: str) -> None:
    aside = root / APPS / app / f".origin-{secrets.token_hex(8)}"
    aside.write_text(digest)
    aside.replace(root / APPS / app / _ORIGIN_NOTE)


def _noted_digest(root: Path, app: str) -> str:
    """Return the noted digest; "" if there is none, for example because the node died before it noted it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest = (root / APPS / app / _ORIGIN_NOTE).read_text()
        return digest if _DIGEST.fullmatch(digest) else ""
    return ""


def chosen(entries: Sequence[FileEntry], origin: Origin) -> list[FileEntry]:
    """Return the files of the checkpoint, without those that were set aside. If a step is required, later files of the
    same series are left out: those whose names differ only in their numbers. Raises Refused if no name has that step."""
    entries = [entry for entry in entries if entry.path.partition("/")[0] != ASIDE]
    if origin.later or origin.step is None:
        return [entry for entry in entries if entry.path and entry.kind != "other"]
    tops = {entry.path.partition("/")[0] for entry in entries if entry.path}
    exact = {top for top in tops if origin.step in _numbers(top)}
    if not exact:
        raise Refused(
            "spec",
            f"from: no checkpoint of {origin.app} has step {origin.step} in its name; `dorm checkpoints {origin.app}` shows "
            "which are there",
            code="spec.from.no_step",
        )
    series = {_STEP_NUMBER.sub("#", top) for top in exact}
    later = {top for top in tops if _STEP_NUMBER.sub("#", top) in series and max(_numbers(top)) > origin.step} - exact
    return [
        entry for entry in entries if entry.path and entry.kind != "other" and entry.path.partition("/")[0] not in later
    ]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _STEP_NUMBER.findall(name)]


def _copy(source: Path, copy: Path, entry: FileEntry) -> None:
    target = copy / entry.path
    if entry.kind == "folder":
        target.mkdir(exist_ok=True)
        return
    # The folder is the other app's, which may put links into it at any moment, and may write without end.
    with opened(source, entry.path) as file:
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            at = 0
            for block in blocks_of(file, entry.size):
                if isinstance(block, int):  # A hole, which stays one: it may be larger than the disk.
                    at += block * BLOCK
                else:
                    write_at(made, block, at)
                    at += len(block)
            if os.fstat(file).st_size < entry.size:
                raise EOFError
            os.ftruncate(made, entry.size)
            os.utime(made, ns=(entry.modified, entry.modified))
            os.fchmod(made, 0o700 if entry.executable else 0o600)
        except EOFError:
            raise FilesError(f"{entry.path} changed while it was copied", code="files.changed") from None
        finally:
            os.close(made)
