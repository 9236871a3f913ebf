"""The git commit that a folder is at, and whether the folder differs from it: for people who look at a run later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Revision(NamedTuple):
    commit: str = ""
    """"" for a folder that is in no repository, or where git does not answer in time."""
    changed: bool = False


async def revision_of(folder: Path) -> Revision:
    """Return the commit that the folder is at.  Files that git ignores do not count as a difference."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            # One call: the first lines are headers, the others are what differs below this folder.
            said = await _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", ".")
    except (OSError, TimeoutError):
        return Revision()
    lines = said.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not _COMMIT.fullmatch(commit):
        return Revision()
    return Revision(commit, any(not line.startswith("#") for line in lines))


async def _git(folder: Path, *words: str) -> str:
    """Return what git says, "" if it fails.  Raises OSError where there is no git."""
    process = await asyncio.create_subprocess_exec(
        "git", "-C", str(folder), *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        # It must not wait for, or take, the lock of an index that somebody else works on.
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
    )  # fmt: skip
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return out.decode(errors="replace") if process.returncode == 0 else ""
