"""The folder of checkpoints that all nodes share, and the proof that this node sees the same one as the others.

A missing mount looks like an empty folder.  So the shared folder holds a marker: a random id, written once by the first agent
that finds none.  Agents announce the id that they find (`NodeJoined.checkpoints`); a node whose id differs from the cluster's
gets no containers.  The marker is read again before each start, and for each checkpoint that an app reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import secrets
from typing import TYPE_CHECKING, TypeVar

import structlog

from agents.runtime.interface import Unavailable
from events.durable import write_whole
from events.errors import DormError
from events.kinds import NO_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        found = self.look()
        if found == NO_FOLDER:
            self._mark()
            found = self.look()
        self.id = found
        return found

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
                found = await asyncio.shield(task)
                self._last = None
                return found
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
