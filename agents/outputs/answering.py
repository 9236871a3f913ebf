"""Answer questions about files of apps (`events.copying`).

If a server guards subjects, a question names the tenant whose files it is about, and the server lets ask only
those who may (`dorm.security.roles`).  An agent therefore need not know users: it answers for apps of this tenant,
and for apps of another one as for an unknown app.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from agents.outputs import files
from agents.outputs.files import FilesError
from agents.outputs.folders import APPS, is_app, owner_of
from agents.runtime.interface import Key, RuntimeFault
from agents.runtime.long_work import LongWork
from agents.runtime.run_dirs import work_copy
from agents.runtime.secrets import PREFIX
from events import subjects
from events.copying import (
    FILES,
    PUT,
    Answer,
    Block,
    CommitUpload,
    ListFiles,
    Listing,
    Place,
    ReadFile,
    Refusal,
    Stored,
    Tail,
    WriteBlock,
    Zeros,
    encode,
    reading_decoder,
    writing_decoder,
)
from events.log.records import LogError
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    from agents.desired import Desired
    from agents.outputs.folders import CheckpointFolder
    from agents.runtime.interface import Runtime
    from events.copying import Reading, Writing
    from events.log.interface import Bus

T = TypeVar("T")
_THREADS: Final = 4
"""Threads of this agent that read and write files of one tenant for clients."""
_AT_ONCE: Final = 16
"""Questions about one tenant's files that are answered at once; others wait."""
_STEP_S: Final = 60.0
"""Seconds that one step, such as a block, may take."""
_COMMIT_S: Final = 3600.0
"""Seconds to compute the digest of a whole file."""
_log = Logger(__name__)


async def answer_files(bus: Bus, cluster: str, runtime: Runtime, desired: Desired, folder: CheckpointFolder) -> None:
    """Answer questions to this node until cancelled.  A server that forbids it, whose permissions are older, or a lost
    connection, ends nothing but this."""
    pool = _Pool()
    served = {FILES: FileAnswerer, PUT: UploadAnswerer}

    async def serve(what: str, kind: type[_Answerer]) -> None:
        def of(subject: str) -> _Answerer:
            tenant = subject.rpartition(".")[2] if bus.guarded else None
            return kind(pool, runtime, desired, folder, tenant)

        own = subjects.asked_of if bus.guarded else subjects.ask
        try:
            await bus.answer_each(own(cluster, desired.node, what), of)
        except LogError as error:
            _log.warning("questions about files are not answered", node=desired.node, what=what, reason=str(error))

    async with asyncio.TaskGroup() as tasks:
        for what, kind in served.items():
            tasks.create_task(serve(what, kind))


class _Pool:
    """Each tenant's share of the threads that touch files: a file server that hangs, and a file that takes
    hours to read, holds those of one tenant and no others."""

    def __init__(self) -> None:
        self._work = LongWork("files", of_one=_THREADS)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def turn(self, tenant: str) -> asyncio.Semaphore:
        """Return what to hold while a question about this tenant's files is answered."""
        return self._turns.setdefault(tenant, asyncio.Semaphore(_AT_ONCE))

    async def run(self, tenant: str, work: Callable[[], T], seconds: float = _STEP_S) -> T:
        """Return the result of `work`. Raises its errors, and FilesError if it takes too long; its thread keeps
        running."""
        try:
            async with asyncio.timeout(seconds):
                return await self._work.run(tenant, work)
        except TimeoutError:
            raise FilesError(
                "the folder does not answer; look at its mount and its server, and try again", code="files.unavailable"
            ) from None


class _Answerer:
    """Answers for one node, and for apps of one tenant: `tenant` is its token in the subject, None on an open cluster."""

    def __init__(
        self, pool: _Pool, runtime: Runtime, desired: Desired, folder: CheckpointFolder, tenant: str | None
    ) -> None:
        self._pool = pool
        self._runtime = runtime
        self._desired = desired
        self._folder = folder
        self._tenant = tenant

    async def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        async with self._pool.turn(self._tenant or ""):
            try:
                async with contextlib.aclosing(self._answer(question)) as pieces:
                    async for piece in pieces:
                        yield encode(piece)
            except FilesError as error:
                yield encode(Refusal(error.code, str(error)))
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                yield encode(Refusal("files.question.malformed", f"the question can't be read: {error}"))

    def _answer(self, question: bytes) -> AsyncGenerator[Answer, None]:
        raise NotImplementedError

    async def _root(self, place: Place) -> tuple[Path, str]:
        """Return the folder of an area, and how files in it begin that are not shown.  Raises FilesError."""
        if not is_app(place.app) or not await self._run(lambda: self._may(place.app)):
            raise self._unknown(place.app)
        if place.area == "work":
            try:
                run = self._runtime.run_dir(Key(place.app, place.generation, place.slot))
            except RuntimeFault as error:
                raise FilesError(str(error), code=error.code) from None
            copied = work_copy(run)
            return (copied, "") if await self._run(copied.is_dir) else (run, PREFIX)
        if not await self._run(self._folder.shared):
            raise FilesError(
                f"node {self._desired.node} does not have the cluster's folder of checkpoints; mount it there",
                code="files.not_mounted",
            )
        root = self._folder.path
        return (root / place.app if place.area == "checkpoints" else root / APPS / place.app / "outputs"), ""

    async def _run(self, work: Callable[[], T], seconds: float = _STEP_S) -> T:
        return await self._pool.run(self._tenant or "", work, seconds)

    def _may(self, app: str) -> bool:
        """Return whether the app is the tenant's.  Blocks."""
        if self._tenant is None:
            return True
        try:
            owner = self._desired.owner_of(app) or owner_of(self._folder.path, app)
        except OSError as error:
            raise FilesError(f"the shared folder can't be read: {error.strerror}", code="files.not_readable") from None
        return owner is not None and subjects.token(owner) == self._tenant

    def _unknown(self, app: str) -> FilesError:
        return FilesError(
            f"node {self._desired.node} has no files of {app[:80]}; `dorm describe` shows whether it has started",
            code="files.app_unknown",
        )


class FileAnswerer(_Answerer):
    """Lists and reads."""

    async def _answer(self, question: bytes) -> AsyncGenerator[Answer, None]:
        request: Reading = reading_decoder.decode(question)
        root, hidden = await self._root(request.place)
        match request:
            case ListFiles(place):
                entries = files.listed(root, place.path, hidden=hidden)
                while (some := await self._run(lambda: next(entries, None))) is not None:
                    yield Listing(some)
            case ReadFile():
                with contextlib.closing(files.Reader(root, request, hidden=hidden)) as reader:
                    await self._run(reader.open, _COMMIT_S)
                    while True:
                        match await self._run(reader.next):
                            case int(blocks):
                                yield Zeros(blocks)
                            case bytes(data):
                                yield Block(data)
                            case str(digest):
                                yield Tail(digest)
                                return


class UploadAnswerer(_Answerer):
    """Takes uploads."""

    async def _answer(self, question: bytes) -> AsyncGenerator[Answer, None]:
        request: Writing = writing_decoder.decode(question)
        if request.place.area == "work":
            raise FilesError(
                "a container's own folder takes no files from outside; copy to outputs", code="files.area.read_only"
            )
        root, _ = await self._root(request.place)
        incoming = self._folder.path / APPS / request.place.app / "incoming"
        if not await self._run(lambda: root.is_dir() and incoming.parent.is_dir()):
            raise FilesError(
                f"{request.place.app} has no folder for files yet; it gets one when its first container starts",
                code="files.app_unknown",
            )
        match request:
            case WriteBlock():
                yield Stored(await self._run(lambda: files.write(incoming, request)))
            case CommitUpload():
                yield Stored(await self._run(lambda: files.commit(root, incoming, request), _COMMIT_S))
