"""Secrets of users, which are files of the node: a spec names them, and their contents are never on the log.

    <folder>/<user>/<name>       `dorm agent --secrets <folder>`

Each container of the user's apps that names a secret finds a copy in its private directory, and the path in a variable of its
own choice.  The copy is emptied once the container has ended.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING

from agents.runtime.interface import Refused
from events.kinds import MOST_SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from events.spec import AppSpec

LARGEST = 64 * 1024
"""Bytes."""
PREFIX = "secret-"
_USER = re.compile(r"[A-Za-z0-9_@+-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Form of the names of users and secrets in specs: anything else is no secret of any app."""


def file_of(name: str) -> str:
    """Return the name of a secret's file in a container's private directory."""
    return PREFIX + name


def variables(spec: AppSpec, folder: str) -> dict[str, str]:
    """Return the variables that hold paths of secrets; `folder` is the private directory as the container sees it."""
    return {variable: f"{folder}/{file_of(name)}" for variable, name in spec.secrets.items()}


def files(folder: Path | None, spec: AppSpec) -> dict[str, bytes]:
    """Return the spec's secrets by the names of their files.  Blocks.  Raises Refused, naming the secret that is
    missing on this node."""
    names = sorted(set(spec.secrets.values()))
    if names and folder is None:
        raise Refused(
            "spec",
            f"it needs the secret {names[0]}, and this node has none: start its agent with --secrets FOLDER",
            code="secrets.no_folder",
        )
    return {file_of(name): _read(folder, spec.user, name) for name in names if folder is not None}


def emptied(spec: AppSpec) -> Iterable[str]:
    """Return the names of the files to empty once a container has ended."""
    return map(file_of, sorted(set(spec.secrets.values())))


def found(folder: Path) -> dict[str, list[str]] | None:
    """Return the names of all secrets that a container here could have, by user; None if there are more than a node
    announces.  Blocks."""
    names: dict[str, list[str]] = {}
    count = 0
    for user in _entries(folder):
        if not _USER.fullmatch(user):
            continue
        own = [name for name in _entries(folder / user) if _NAME.fullmatch(name) and _is_secret(folder / user / name)]
        count += len(own)
        if count > MOST_SECRETS:
            return None
        if own:
            names[user] = own
    return names


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_secret(path: Path) -> bool:
    """Return whether `_read` would take a file."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST and os.access(path, os.R_OK)


def _read(folder: Path, user: str, name: str) -> bytes:
    path = folder / user / name
    try:
        # Both names come from a spec, and neither can hold a slash.  A link must not lead to files of others.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
                raise _missing(path, f"it is not a file of at most {LARGEST:,} bytes")
            return file.read(LARGEST)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or type(error).__name__
        raise _missing(path, why) from None


def _missing(path: Path, why: str) -> Refused:
    return Refused(
        "spec", f"the secret {path.name} of user {path.parent.name} can't be read ({why}): put it at {path} on this node",
        code="secrets.not_readable",
    )  # fmt: skip
