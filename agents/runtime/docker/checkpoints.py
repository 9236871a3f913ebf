"""The checkpoint directory of an app, as its containers may have it: below the allowed root, and its tenant's alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog

from agents.runtime.interface import Refused

_log = structlog.get_logger(__name__)
_DEEPEST = 100
"""Folders below this level keep their owner: each level takes a file descriptor of the agent's."""


def find(folder: str, root: Path | None) -> Path | None:
    """Return the real directory; None if `folder` is "".  Blocks.

    Raises `Refused` ("spec") if it is not a directory below the allowed root: a link that leads out of it would be an escape.
    """
    if not folder:
        return None
    if root is None:
        raise Refused("spec", "this node has no folder for checkpoints", code="container.checkpoints.missing")
    try:
        real = Path(folder).resolve(strict=True)
        inside = root.resolve(strict=True) in real.parents
    except (OSError, RuntimeError) as failure:
        raise Refused(
            "spec", f"the checkpoint directory cannot be used: {failure}", code="container.checkpoints.not_found"
        ) from failure
    if not real.is_dir() or not inside:
        raise Refused(
            "spec",
            f"the checkpoint directory {folder} is not a directory below {root}",
            code="container.checkpoints.outside",
        )
    return real


def give(folder: str, root: Path | None, owner: tuple[int, int]) -> Path | None:
    """Return the real directory, which is `owner`'s (uid, gid) from now on if this process is root.  Blocks.  Raises as `find`
    does."""
    real = find(folder, root)
    if real is not None and os.getuid() == 0:
        try:
            _give(real, owner)
        except OSError as failure:  # a network file system may not let root do that, and may not need it
            _log.warning(
                "the checkpoint directory keeps its owner; if containers cannot write there, let them run as that owner "
                "with --container-user",
                path=str(real),
                error=str(failure),
            )
    return real


def _give(folder: Path, owner: tuple[int, int]) -> None:
    """Give a directory and all that its last owner has in it to `owner`, and close it to others.

    The directory itself comes last, so that a crash before that repeats the rest.  No link is followed, and files of any other
    owner stay theirs: an app may have put links to them there.
    """
    status = folder.stat()
    before = status.st_uid
    if (before, status.st_gid) != owner:
        for path, folders, files, descriptor in os.fwalk(folder):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if found.st_uid == before:
                        os.chown(name, *owner, dir_fd=descriptor, follow_symlinks=False)
            if path.count("/") - str(folder).count("/") > _DEEPEST:
                folders.clear()
        os.chown(folder, *owner, follow_symlinks=False)
    if status.st_mode & 0o077:
        folder.chmod(0o700)
