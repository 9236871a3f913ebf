"""The places of an app's files in the folder that all nodes share.

    ROOT/APP/                     its checkpoints (`agents.checkpoint_folder`)
    ROOT/.dorm-apps/APP/owner     whose app it is, where no container can write
    ROOT/.dorm-apps/APP/outputs/  its outputs (`DORM_OUTPUTS`), which survive its generations as checkpoints do
    ROOT/.dorm-apps/APP/origin    the digest of the checkpoint that it started from, if that is another app's
    ROOT/.dorm-apps/APP/believed  its files when it last reported a checkpoint (`agents.outputs.believed`)
    ROOT/.dorm-apps/APP/incoming/ uploads that are not complete
    ROOT/.dorm-apps/.gone-APP-*/  what could not be removed of an app that ended long ago

The owner's name is on disk so that every agent knows whose files these are: a node that never ran the app, and a node
that has forgotten it.  Every function blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from agents.runtime.removing import delete

if TYPE_CHECKING:
    from pathlib import Path

    from agents.checkpoint_folder import CheckpointFolder

APPS: Final = ".dorm-apps"
"""No app's id begins with a dot."""
_GONE: Final = ".gone-"
_APP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LONGEST_OWNER: Final = 4096
_LISTED: Final = 0o711
"""A container's user reaches its own folder by its path, and can list no others."""


class AppFolders(NamedTuple):
    """The folders of one app, on the host."""

    checkpoints: Path
    outputs: Path


def folders_of(folder: CheckpointFolder, app: str, owner: str, *, resume: bool, cluster: str) -> AppFolders:
    """Return the app's folders, created if missing. Raises as `CheckpointFolder.of_app` does."""
    checkpoints = folder.of_app(app, resume=resume, cluster=cluster)
    return AppFolders(checkpoints, _make(folder.path, app, owner))


def prepare(folder: CheckpointFolder, app: str, owner: str, *, cluster: str) -> None:
    """Make the folders of an app, except the folder of its checkpoints.  Raises as `CheckpointFolder.check` does."""
    folder.check(cluster)
    _make(folder.path, app, owner)


def _make(root: Path, app: str, owner: str) -> Path:
    own = root / APPS / app
    for made in (root / APPS, own):
        with contextlib.suppress(FileExistsError):
            made.mkdir()
            made.chmod(_LISTED)
    if not (own / "owner").exists():
        aside = own / f".owner.{secrets.token_hex(8)}"
        aside.write_text(owner)
        aside.replace(own / "owner")
    (own / "outputs").mkdir(exist_ok=True)
    return own / "outputs"


def is_app(app: str) -> bool:
    """Return whether this may be an app's id, and so the name of a folder."""
    return _APP.fullmatch(app) is not None


def owner_of(root: Path, app: str) -> str | None:
    """Return whose app it is, as noted when it first started; None if nothing is noted.  Raises OSError."""
    if not is_app(app):
        return None
    try:
        file = os.open(root / APPS / app / "owner", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(file, "rb") as readable:
        return readable.read(_LONGEST_OWNER).decode("utf-8", "replace")


def remove(root: Path, app: str) -> None:
    """Remove all files of an app from the shared folder.  Every agent that ran a part of it does so, so it may be gone
    already.  They are renamed first: what stays is found by `remove_remains`."""
    if not is_app(app):
        return
    for folder in (root / app, root / APPS / app):
        gone = root / APPS / f"{_GONE}{app}-{secrets.token_hex(4)}"
        try:
            os.rename(folder, gone)
        except FileNotFoundError:
            continue
        except OSError:  # such as EBUSY, if something is mounted there
            gone = folder
        delete(gone)


def remove_remains(root: Path) -> None:
    """Remove what stayed of apps' files, and name what stays again."""
    for left in sorted((root / APPS).glob(f"{_GONE}*")):
        delete(left)
