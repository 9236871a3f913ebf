"""An app that starts from another one's checkpoint gets a copy of it, before its first container starts.

The copy gets its name only once it is complete, so a container always finds a complete one.  Each node that starts one
makes a copy, and the first that is complete counts.  Its digest is noted beside the app's files, where no container can
write.

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
from typing import TYPE_CHECKING

from agents.outputs.believed import ASIDE
from agents.outputs.folders import APPS, is_app
from agents.outputs.opening import FilesError, opened
from agents.outputs.reading import listed
from agents.runtime.interface import Refused
from agents.runtime.removing import delete
from events.copying import BLOCK, blocks_of, write_at
from events.spec.gates import origin_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from events.copying import FileEntry
    from events.spec.gates import Origin

_NUMBER = re.compile(r"[0-9]{1,15}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOTE = "origin"


def bring(root: Path, app: str, text: str) -> str:
    """Copy the checkpoint that `from` in the app's spec names, unless the app has a folder.  Return the digest of the
    copied files, by this node or another; "" if none is noted.  Raises Refused, OSError."""
    origin = origin_of(text)
    if origin is None or (root / app).is_dir():
        return _noted(root, app) if origin is not None else ""
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
            return _noted(root, app)
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
    aside.replace(root / APPS / app / _NOTE)


def _noted(root: Path, app: str) -> str:
    """Return the noted digest; "" if there is none, for example because the node died before it noted it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (root / APPS / app / _NOTE).read_text()
        return found if _DIGEST.fullmatch(found) else ""
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
    series = {_NUMBER.sub("#", top) for top in exact}
    later = {top for top in tops if _NUMBER.sub("#", top) in series and max(_numbers(top)) > origin.step} - exact
    return [
        entry for entry in entries if entry.path and entry.kind != "other" and entry.path.partition("/")[0] not in later
    ]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(name)]


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
            for found in blocks_of(file, entry.size):
                if isinstance(found, int):  # A hole, which stays one: it may be larger than the disk.
                    at += found * BLOCK
                else:
                    write_at(made, found, at)
                    at += len(found)
            if os.fstat(file).st_size < entry.size:
                raise EOFError
            os.ftruncate(made, entry.size)
            os.utime(made, ns=(entry.modified, entry.modified))
            os.fchmod(made, 0o700 if entry.executable else 0o600)
        except EOFError:
            raise FilesError(f"{entry.path} changed while it was copied", code="files.changed") from None
        finally:
            os.close(made)
