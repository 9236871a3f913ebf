"""The folder of checkpoints that all nodes share, and the proof that this node sees the same one as the others.

A missing mount looks like an empty folder.  So the shared folder holds a marker: a random id, written once by the
first agent that finds none.  Agents announce the id that they find (`NodeJoined.checkpoints`); a node whose id differs
from the cluster's gets no containers.  The marker is read again before each start, and for each checkpoint that an app
reports.

Below it lie the places of an app's files.

    ROOT/APP/                     its checkpoints
    ROOT/.dorm-apps/APP/owner     whose app it is, where no container can write
    ROOT/.dorm-apps/APP/outputs/  its outputs (`DORM_OUTPUTS`), which survive its generations as checkpoints do
    ROOT/.dorm-apps/APP/origin    the digest of the checkpoint that it started from, if that is another app's
    ROOT/.dorm-apps/APP/believed  its files when it last reported a checkpoint (`agents.outputs.checkpoints`)
    ROOT/.dorm-apps/APP/incoming/ uploads that are not complete
    ROOT/.dorm-apps/.gone-APP-*/  what could not be removed of an app that ended long ago

The owner's name is on disk so that every agent knows whose files these are: a node that never ran the app, and a node
that has forgotten it.  Every function blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from agents.runtime.interface import Unavailable
from agents.runtime.removing import delete
from events.durable import write_whole
from events.errors import DormError
from events.kinds import NO_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# --- the shared folder ------------------------------------------------------------------------------------------------

T = TypeVar("T")

MARKER = ".dorm-checkpoints"
_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST = 4096
_log = structlog.get_logger(__name__)
_PATIENCE_S = 20.0
"""Seconds that a look may take."""


class NotShared(DormError):
    """The folder is not the one that this node has announced; the message says what to do."""

    code = "checkpoints.not_shared"


class CheckpointFolder:
    """The folder at `path`; every method blocks.  `id` is the last id found, "" before that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = ""

    def open(self) -> str:
        """Return the folder's id; create the folder and its marker if they do not exist.  Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        id_ = self.look()
        if id_ == NO_FOLDER:
            self._mark()
            id_ = self.look()
        self.id = id_
        return id_

    def look(self) -> str:
        """Return the id in the marker now, NO_FOLDER if there is none.  Raises OSError if the marker can't be read."""
        try:
            with (self.path / MARKER).open("rb") as file:
                text = file.read(_LONGEST).decode("utf-8", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return NO_FOLDER
        if not _ID.fullmatch(text):
            raise OSError(errno.EIO, "the marker holds no id; write the id into it that `dorm nodes` shows for other nodes",
                          str(self.path / MARKER))  # fmt: skip
        return text

    def _mark(self) -> None:
        """Write the marker atomically; of several agents at once, one succeeds."""
        write_whole(self.path / MARKER, secrets.token_hex(16).encode() + b"\n", replace=False)

    def is_the_same(self) -> bool:
        """Return False only if the folder certainly differs from the last one found."""
        try:
            return self.look() == self.id
        except OSError:
            return True

    def shared(self) -> bool:
        """Return whether the folder is certainly still the one that was announced."""
        try:
            return self.look() == self.id != NO_FOLDER
        except OSError:
            return False

    def of_app(self, app: str, *, resume: bool, cluster: str = "") -> Path:
        """Return the app's folder, created for its first start.  `cluster` is the id of the cluster's folder when the
        start was decided, "" if none was known.  Raises NotShared, or OSError if the marker is unreadable."""
        self.check(cluster)
        folder = self.path / app
        if resume and not folder.is_dir():
            raise NotShared(
                f"{folder} is not there, and the app has saved a checkpoint: mount the folder that holds it, or put it back; "
                "to start from nothing, cancel the app and submit it again",
                code="checkpoints.app_missing",
            )
        folder.mkdir(exist_ok=True)
        return folder

    def check(self, cluster: str) -> None:
        """Raises NotShared if the folder is not the one of id `cluster`, or not the one that was announced; OSError if its
        marker is unreadable."""
        if self.look() != self.id or self.id == NO_FOLDER:
            raise NotShared(
                f"{self.path} is not the folder of checkpoints that this node had when it joined: mount it again",
                code="checkpoints.replaced",
            )
        if cluster not in ("", self.id):
            raise NotShared(
                f"{self.path} is the folder of checkpoints {self.id}, and the app's is {cluster}: mount that one",
                code="checkpoints.differs",
            )


class Looks:
    """Looks at a folder from the event loop, in one thread at a time.

    Each look at a mount whose server does not answer holds its thread until the server is back.  The node's lease needs
    threads too, so all containers together may take only one for this."""

    def __init__(self, folder: CheckpointFolder, node: str) -> None:
        self.folder = folder
        self.doubted = asyncio.Event()
        """Set when the folder has to be checked."""
        self._node = node
        self._turn = asyncio.Lock()
        self._last: asyncio.Task[object] | None = None
        """The look that still holds its thread, even if its caller has given up."""

    async def __call__(self, look: Callable[[], T]) -> T:
        """Return the result of `look`.  Raises what it raises, and Unavailable if the folder does not answer in time."""
        try:
            async with asyncio.timeout(_PATIENCE_S), self._turn:
                if self._last is not None:
                    await asyncio.wait([self._last])
                    if not self._last.cancelled():
                        self._last.exception()  # Its caller has given up.
                task = asyncio.create_task(asyncio.to_thread(look))
                self._last = task
                folder = await asyncio.shield(task)
                self._last = None
                return folder
        except TimeoutError:
            raise Unavailable(
                f"the folder of checkpoints {self.folder.path} does not answer: look at its mount and its server",
                code="checkpoints.unavailable",
            ) from None

    async def find(self) -> None:
        """Find the id to announce.  Only a process that has not seen the folder yet marks an empty one: later it would be a
        lost mount.  Raises OSError and Unavailable if the folder can't be read and no id is known."""
        if not self.folder.id:
            await self(self.folder.open)
            return
        with contextlib.suppress(OSError, Unavailable):
            self.folder.id = await self(self.folder.look)

    async def shared(self) -> bool:
        """Return whether the folder is certainly still the one that was announced."""
        try:
            return await self(self.folder.shared)
        except Unavailable as error:
            _log.warning("the folder can't be looked at", node=self._node, reason=str(error))
            return False


# --- the folders of an app --------------------------------------------------------------------------------------------

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
