"""Ask agents for an app's files.

Outputs and checkpoints are in the folder that all nodes share, so any node can answer for them, and another one does
if the first is gone. Only a container's own node can answer for its private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from dorm.client.errors import ClientError
from dorm.core.app import App
from events import subjects
from events.copying import (
    FILES,
    PUT,
    Answer,
    Area,
    FileEntry,
    ListFiles,
    Listing,
    Place,
    Refusal,
    Stored,
    answer_decoder,
    encode,
)
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.client.client import Client
    from events.copying import Reading, Writing

_PATIENCE_S = 30.0
"""How long, in seconds, a question is repeated if no node answers: servers and agents come back after an outage."""
_PAUSE_S = 0.5
_ELSEWHERE = ("files.app_unknown", "files.not_mounted", "files.unavailable")
"""Refusals after which another node may have the files."""


class FilesRefused(ClientError):
    """An agent refuses a question about files, or none answers; the message says what to do."""

    code = "files.failed"


class Where(msgspec.Struct, frozen=True):
    """An area of an app's files, and the nodes that have it."""

    app: App
    area: Area
    nodes: list[str]
    generation: int = 0
    """Of `work`: which container's."""
    slot: int = 0

    def place(self, path: str) -> Place:
        return Place(self.app.id, self.area, path, generation=self.generation, slot=self.slot)


class Files:
    """Questions of one client.  A node that has answered is asked first from then on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answered = ""

    async def find(self, name_or_id: str, area: Area = "outputs", *, rank: int | None = None) -> Where:
        """Return where an app's files are: of `work`, those of the container of this rank, default the first, in its latest
        generation.  Raises NotFound."""
        app = await self._client.app(name_or_id)
        if area == "work":
            ran = await self._client.output.generation(app)
            slot = ran.slot(rank=rank)
            return Where(app, area, [ran.nodes[slot]], ran.number, slot)
        state = await self._client.state()
        had = [
            one.node
            for _, generation in sorted(app.generations.items(), reverse=True)
            for one in generation.all_containers()
        ]
        up = [name for name, node in sorted(state.nodes.items()) if node.condition == "up" and not node.foreign]
        nodes = [*(name for name in had if name in up), *up]
        if not nodes:
            raise FilesRefused(
                f"no node is up that could have files of {app.name}; `dorm nodes` shows why", code="files.no_node"
            )
        return Where(app, area, list(dict.fromkeys(nodes)))

    async def listed(self, where: Where, path: str = "") -> list[FileEntry]:
        """Return the entries at a path: the file, or the folder with its content. Raises FilesRefused, and the bus's
        errors."""
        found: list[FileEntry] = []
        async with contextlib.aclosing(self.read(where, ListFiles(where.place(path)))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Listing):
                    found += piece.entries
        return found

    async def read(self, where: Where, question: Reading) -> AsyncGenerator[Answer, None]:
        """Yield the pieces of an answer from the first node that has the file.  Raises as `listed`; once a piece has
        come, the caller has to handle a lost connection."""
        async for piece in self._ask(where, FILES, encode(question)):
            yield piece

    async def write(self, where: Where, question: Writing) -> Stored:
        """Take one step of an upload.  Raises as `listed`."""
        async with contextlib.aclosing(self._ask(where, PUT, encode(question))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Stored):
                    return piece
        raise FilesRefused("the agent did not say whether it took the file; copy it again", code="files.no_answer")

    async def _ask(self, where: Where, what: str, question: bytes) -> AsyncGenerator[Answer, None]:
        """Ask one node after the other, and again for a while if none answers."""
        loop = asyncio.get_running_loop()
        ends, begun = loop.time() + _PATIENCE_S, False
        while True:
            failed: Exception | None = None
            for node in sorted(where.nodes, key=lambda node: node != self._answered):
                try:
                    async for piece in self._pieces(where, node, what, question):
                        begun, self._answered = True, node
                        yield piece
                    return
                except FilesRefused as error:
                    if begun or error.code not in _ELSEWHERE:
                        raise
                    failed = error
                except LogUnavailable as error:
                    if begun:
                        raise
                    failed = failed or error
            if not isinstance(failed, LogUnavailable) or loop.time() > ends or failed.code == "agent.no_answer":
                raise self._no_answer(where, failed)
            await asyncio.sleep(_PAUSE_S)

    def _no_answer(self, where: Where, failed: Exception | None) -> Exception:
        if isinstance(failed, LogUnavailable) and failed.code == "agent.no_answer":
            return FilesRefused(
                f"no agent on {', '.join(where.nodes[:3])} answers for files of {where.app.name}: it does not run, or is "
                "older than 0.6.0; `dorm doctor` shows which",
                code="files.no_answer",
            )
        return failed or FilesRefused("no node was asked", code="files.no_node")

    async def _pieces(self, where: Where, node: str, what: str, question: bytes) -> AsyncGenerator[Answer, None]:
        bus = self._client.bus
        subject = subjects.ask(self._client.cluster, node, what, where.app.tenant if bus.guarded else "")
        try:
            async with contextlib.aclosing(bus.ask(subject, question)) as answer:
                async for body in answer:
                    piece = _decoded(body)
                    if isinstance(piece, Refusal):
                        raise FilesRefused(piece.text, code=piece.code)
                    yield piece
        except LogRefused as error:
            raise FilesRefused(str(error), code=error.code) from None


def _decoded(body: bytes) -> Answer:
    try:
        return answer_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise FilesRefused(
            "the agent's answer can't be read: it is of another release; upgrade the older of the two",
            code="files.answer.unreadable",
        ) from None
