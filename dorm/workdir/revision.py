"""The git commit that a folder is at, and whether the folder differs from it: for users who examine a run later."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from dorm.workdir.ignoring import NoAnswer, ask_git, unfiltered

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Revision(NamedTuple):
    commit: str = ""
    """"" for a folder outside any repository, or if git does not answer in time."""
    changed: bool = False


async def revision_of(folder: Path) -> Revision:
    """Return the commit that the folder is at.  Files that git ignores do not count as a difference, and of a submodule only
    another commit does: git would start the filters that its own settings name."""
    try:
        # One call: the first lines are headers, the others are what differs below this folder.
        lines = (await asyncio.to_thread(_status, folder)).splitlines()
    except NoAnswer:
        return Revision()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not _COMMIT.fullmatch(commit):
        return Revision()
    return Revision(commit, any(not line.startswith("#") for line in lines))


def _status(folder: Path) -> str:
    """Return git's output about the folder, "" if it fails. Raises NoAnswer.

    It runs in a thread: where a process of asyncio's is cancelled while it ends, its exit status may be taken twice, and
    asyncio warns on stderr (python/cpython#127049).
    """
    words = ("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")
    code, out = ask_git(folder, *words, timeout=_PATIENCE_S, settings=unfiltered(folder, _PATIENCE_S))
    return out.decode(errors="replace") if code == 0 else ""
