"""The git commit that a folder is at, and whether the folder differs from it: for users who examine a run later."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Revision(NamedTuple):
    commit: str = ""
    """"" for a folder outside any repository, or if git does not answer in time."""
    changed: bool = False


async def revision_of(folder: Path) -> Revision:
    """Return the commit that the folder is at.  Files that git ignores do not count as a difference."""
    try:
        # One call: the first lines are headers, the others are what differs below this folder.
        lines = (await asyncio.to_thread(_status, folder)).splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return Revision()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not _COMMIT.fullmatch(commit):
        return Revision()
    return Revision(commit, any(not line.startswith("#") for line in lines))


def _status(folder: Path) -> str:
    """Return git's output about the folder, "" if it fails. Raises OSError if git is not installed.

    It runs in a thread: where a process of asyncio's is cancelled while it ends, its exit status may be taken twice, and
    asyncio warns on stderr (python/cpython#127049).
    """
    done = subprocess.run(
        ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", "."],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S, check=False,
        # It must not wait for, or take, the lock of an index that another program uses.
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
    )  # fmt: skip
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
