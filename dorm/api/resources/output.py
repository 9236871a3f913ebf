"""What an app's containers write, as `dorm logs` has it, and the files that an app leaves.

Output is asked of the agents that keep it: of one container or of all of a generation, from a time on or up to one, to its end
or further.  It comes as text, or, with `Accept: text/event-stream`, as events:

    line      a line; with `partial`, the line of a progress bar so far, which the next event of its slot replaces
    missed    lines are missing before the next one, because they were not read in time
    end       there is no more

The lines of all containers are merged by their times if they all exist already; otherwise, they come as they are written.  An
event is small, a reader that does not keep up slows its own answer only, and at most `MOST_TOGETHER` containers are read
for one answer.

Outputs and checkpoints are listed and read as `dorm cp` does it.  A file is passed on in pieces, and never held as a whole.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from aiohttp import web

from dorm.api.connections import SECURITY, address_of
from dorm.api.errors import Forbidden, Missing
from dorm.api.handlers import requester, streamed
from dorm.api.responses import POSITION, Answer, answer
from dorm.api.routes import Call, Parameters, Route
from dorm.api.streams import CONTENT_TYPE, HEARTBEAT, frame, wanted
from dorm.client.errors import Refused
from dorm.client.files import Files, FilesRefused
from dorm.client.output import Line, stamp, timed_lines
from events.cloudevents import rfc3339
from events.copying import BLOCK, LONGEST_PATH, Block, FileDigest, ReadFile, Tail, Zeros
from events.errors import DormError
from events.quantities import humanize
from replay.moments import parse_clock
from replay.travel import clock_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from dorm.api.streams import Stream
    from dorm.client.files import Where
    from dorm.client.output import Ran
    from events.copying import FileEntry

TEXT = "text/plain"
FILE = "application/octet-stream"
MOST_TOGETHER = 64
"""Containers whose output one answer has."""
_BEAT_S = 10.0
"""Between two looks at whether the client of a quiet container is still there."""
_LINE = 64 << 10
"""Bytes of a line of output after which it is cut into two events."""
_ROOM = 8 << 20
"""Bytes of the last lines of one container up to a moment."""
_AGAIN_S, _TRIES = 0.5, 120
"""How often a container that is to start is looked for."""
_WAITING = 8
"""Lines of one container that wait to be merged with others'."""


# --- parameters -------------------------------------------------------------------------------------------------------

Since = Annotated[str, msgspec.Meta(max_length=64)]


class LogsQuery(Parameters, frozen=True, kw_only=True):
    """Which containers' output."""

    slot: Annotated[int, msgspec.Meta(ge=0, le=2**20, description="Which container; default: the first.")] | None = None
    every: Annotated[bool, msgspec.Meta(description="All containers of the generation; each line says its slot.")] = (
        False
    )
    generation: (
        Annotated[int, msgspec.Meta(ge=1, le=2**53, description="Which generation; default: the latest that started.")]
        | None
    ) = None
    follow: Annotated[bool, msgspec.Meta(description="Go on until the container ends.")] = False
    tail: (
        Annotated[int, msgspec.Meta(ge=0, le=100_000, description="Only the last lines of each container.")] | None
    ) = None
    since: (
        Annotated[
            Since,
            msgspec.Meta(
                description="Only lines from this time on (`14:05`, a time), from so long ago (`-10m`), or from when a record "
                "came on the log. Lines whose time is not known stay."
            ),
        ]
        | None
    ) = None
    until: (
        Annotated[Since, msgspec.Meta(description="Only lines up to this time, written like that of `since`.")] | None
    ) = None
    timestamps: Annotated[
        bool, msgspec.Meta(description="Give each line the time at which it was written, by its node's clock.")
    ] = False


# --- lines ------------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A line of one container."""

    slot: int
    line: Line


Missed = list[dict[str, int | None]]


async def _lines_of(
    call: Call[LogsQuery, None], ran: Ran, slot: int, span: tuple[int | None, int | None], missed: Missed, *, bars: bool
) -> AsyncGenerator[Written, None]:
    """Yield the lines of one container between two times (UTC ns), where these are known."""
    query, (since, until) = call.query, span

    def note(lines: int | None, size: int) -> None:
        missed.append({"slot": slot, "lines": lines, "bytes": size} if query.every else {"lines": lines, "bytes": size})

    output = call.services.requester(call.user).output
    # What is last before a moment is not what is last now.
    tail, last = (query.tail, None) if until is None else (None, _Last(query.tail))
    pieces = output.read_timed(ran, slot, follow=query.follow and until is None, tail=tail, since=since, missed=note)
    async with aclosing(pieces):
        async for line in timed_lines(pieces, bars=bars and until is None):
            if until is not None and line.time and line.time > until:
                break
            if last is None:
                yield Written(slot, line)
            else:
                last.add(line)
    for line in last.lines if last is not None else ():
        yield Written(slot, line)


class _Last:
    """The last lines of some output: so many, if a number is given, and so many bytes."""

    def __init__(self, most: int | None) -> None:
        self.lines: deque[Line] = deque()
        self._most = most
        self._bytes = 0

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self._bytes += len(line.text)
        while self.lines and (self._bytes > _ROOM or (self._most is not None and len(self.lines) > self._most)):
            self._bytes -= len(self.lines.popleft().text)


async def _patiently(
    make: Callable[[], AsyncGenerator[Written, None]], slot: int, *, follow: bool
) -> AsyncGenerator[Written, None]:
    """Yield the lines of one of several containers.  One that is to start soon is waited for; if a node can't be asked, the
    last line says so, and the other containers' go on."""
    tries = _TRIES if follow else 0
    while True:
        heard = False
        try:
            async with aclosing(make()) as source:
                async for written in source:
                    heard = True
                    yield written
        except DormError as error:
            if heard or not tries or error.code != "slot.not_found":
                yield Written(slot, Line(f"(this output cannot be read: {error})".encode()))
                return
        else:
            return
        tries -= 1
        await asyncio.sleep(_AGAIN_S)


async def _in_order(sources: Sequence[AsyncIterator[Written]]) -> AsyncGenerator[Written, None]:
    """Merge lines by their times; each container's own keep their order, and one of unknown time follows the one before."""

    async def following(index: int, after: int) -> tuple[int, int, Written] | None:
        written = await anext(sources[index], None)
        return None if written is None else (max(after, written.line.time or 0), index, written)

    heads = [head for head in await asyncio.gather(*(following(index, 0) for index in range(len(sources)))) if head]
    heapq.heapify(heads)
    while heads:
        time, index, written = heads[0]
        yield written
        head = await following(index, time)
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, head)


async def _as_they_come(sources: Sequence[AsyncIterator[Written]]) -> AsyncGenerator[Written, None]:
    """Yield lines as they are written, until all containers have ended."""
    queue: asyncio.Queue[Written | BaseException | None] = asyncio.Queue(_WAITING * len(sources))

    async def pump(source: AsyncIterator[Written]) -> None:
        try:
            async for written in source:
                await queue.put(written)
        except Exception as error:  # For the reader, who may be waiting for the queue.
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(source)) for source in sources]
    left = len(tasks)
    try:
        while left:
            written = await queue.get()
            if isinstance(written, BaseException):
                raise written
            if written is None:
                left -= 1
            else:
                yield written
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _asked(call: Call[LogsQuery, None], missed: Missed, *, events: bool) -> AsyncGenerator[bytes, None]:
    """Yield the answer in pieces: text, or events.  What is missing before a piece is added to `missed` first."""
    query, client = call.query, call.services.requester(call.user)
    span = await _time_of(call, query.since), await _time_of(call, query.until)
    ran = await client.output.generation(await client.app(call.path("app")), query.generation)
    slots = sorted(ran.nodes) if query.every else [ran.slot(slot=query.slot)]
    if len(slots) > MOST_TOGETHER:
        text = f"at most {MOST_TOGETHER} containers are read together, and there are {len(slots)}; name one by its slot"
        raise Refused(text, code="logs.too_many")

    if not (query.every or query.timestamps or query.until):

        def note(lines: int | None, size: int) -> None:
            missed.append({"lines": lines, "bytes": size})

        async for piece in client.output.read_slot(
            ran, slots[0], follow=query.follow, tail=query.tail, since=span[0], missed=note
        ):
            yield piece
        return
    makes = [partial(_lines_of, call, ran, slot, span, missed, bars=events) for slot in slots]
    sources = (
        [makes[0]()]
        if len(makes) == 1
        else [_patiently(make, slot, follow=query.follow) for slot, make in zip(slots, makes, strict=True)]
    )
    merged = sources[0] if len(sources) == 1 else (_as_they_come if query.follow else _in_order)(sources)
    async with aclosing(merged):
        async for written in merged:
            yield _event(query, written) if events else _text(query, written)


async def _time_of(call: Call[LogsQuery, None], text: str | None) -> int | None:
    """Return a moment of the request as a clock time (UTC ns)."""
    if text is None:
        return None
    return await clock_of(call.services.follower.log, parse_clock(text, call.services.clock()))


def _text(query: LogsQuery, written: Written) -> bytes:
    line = written.line
    slot = f"{written.slot}: ".encode() if query.every else b""
    time = stamp(line.time or 0).encode() + b" " if query.timestamps else b""
    return slot + time + line.text + b"\n"


def _event(query: LogsQuery, written: Written) -> bytes:
    line = written.line
    fields: dict[str, str | int | bool | None] = {"text": _last_states(line).decode(errors="replace")}
    if query.timestamps:
        fields["time"] = stamp(line.time).rstrip() if line.time else None
    if query.every:
        fields["slot"] = written.slot
    if not line.whole:
        fields["partial"] = True
    return frame("", "line", msgspec.json.encode(fields))


def _last_states(line: Line) -> bytes:
    """Return a line; of a progress bar that goes on, only its last states, since each replaces the one before."""
    return line.text if line.whole else b"\r".join(line.text.rsplit(b"\r", 2)[-2:])


# --- the answer -------------------------------------------------------------------------------------------------------


async def app_logs(call: Call[LogsQuery, None]) -> web.StreamResponse:
    """What one container of a generation wrote, or all of them, from their nodes' agents.  As text, or, with `Accept:
    text/event-stream`, as events `line`, `missed` where lines are missing because they were not read in time, and `end`."""
    services, query, request = call.services, call.query, call.request
    limits = services.options.limits
    missed: Missed = []
    events = wanted(request)
    async with aclosing(_asked(call, missed, events=events)) as source:
        # The first piece, or the refusal, comes before the answer's head.
        output = _Output(source, request, missed)
        first = await output.next(None if query.follow else limits.answer_s)
        if events:

            async def serve(stream: Stream) -> None:
                plain = not (query.every or query.timestamps or query.until)
                await (_plain_lines if plain else _events)(stream, output, first)

            return await streamed(call, serve, str(services.follower.seq))
        known = call.user if services.door.closed else ""
        with services.addresses.stream(address_of(request.transport), known):
            headers = {"Content-Type": f"{TEXT}; charset=utf-8", "Cache-Control": "no-store", **SECURITY}
            response = web.StreamResponse(headers={**headers, POSITION: str(services.follower.seq)})
            await response.prepare(request)
            piece = first
            while piece is not None:
                async with asyncio.timeout(limits.write_s):
                    await response.write(piece)
                piece = await output.next()
            await response.write_eof()
            return response


class _Output:
    """Pieces of output, for a client that may go away while nothing is written."""

    def __init__(self, source: AsyncIterator[bytes], request: web.Request, missed: Missed) -> None:
        self._source = source
        self._request = request
        self._missed = missed

    def missed(self) -> list[bytes]:
        """Return an event for each part that is missing before the last piece."""
        frames = [frame("", "missed", msgspec.json.encode(one)) for one in self._missed]
        self._missed.clear()
        return frames

    async def next(
        self, timeout: float | None = None, beat: Callable[[], Awaitable[None]] | None = None
    ) -> bytes | None:
        """Return the next piece, None at the end or if the client has gone; call `beat` while there is none.  Raises
        TimeoutError, and what the source raises."""
        waiting = asyncio.ensure_future(anext(self._source, None))
        try:
            async with asyncio.timeout(timeout):
                while not (await asyncio.wait({waiting}, timeout=_BEAT_S))[0]:
                    if self._request.transport is None or self._request.transport.is_closing():
                        return None
                    if beat is not None:
                        await beat()
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})


async def _plain_lines(stream: Stream, output: _Output, first: bytes | None) -> None:
    async def beat() -> None:
        await stream.write([HEARTBEAT])

    rest, piece = b"", first
    while piece is not None:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LINE:
            lines, rest = [*lines, rest], b""
        await stream.write([*output.missed(), *(_plain_line(line) for line in lines)])
        piece = await output.next(beat=beat)
    await stream.write([*([_plain_line(rest)] if rest else []), frame("", "end", b"{}")])


def _plain_line(line: bytes) -> bytes:
    return frame("", "line", msgspec.json.encode({"text": line.decode(errors="replace")}))


async def _events(stream: Stream, output: _Output, first: bytes | None) -> None:
    async def beat() -> None:
        await stream.write([HEARTBEAT])

    piece = first
    while piece is not None:
        await stream.write([*output.missed(), piece])
        piece = await output.next(beat=beat)
    await stream.write([frame("", "end", b"{}")])


# --- files ------------------------------------------------------------------------------------------------------------

AreaOfApp = Literal["outputs", "checkpoints"]
Path = Annotated[str, msgspec.Meta(max_length=LONGEST_PATH)]


class FilesQuery(Parameters, frozen=True, kw_only=True):
    """Which files of an app."""

    area: Annotated[AreaOfApp, msgspec.Meta(description="What it wrote for its users, or to resume from.")] = "outputs"
    path: Annotated[Path, msgspec.Meta(description="A folder there; default: all.")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000, description="Most files.")] = 1000


class FileItem(msgspec.Struct, frozen=True):
    """A file, or a folder."""

    path: str
    """Relative to the area."""
    kind: Literal["file", "folder", "other"]
    size: int
    """Bytes."""
    modified: str | None
    note: str
    """Why it cannot be copied."""


class FileList(msgspec.Struct, frozen=True):
    """Files of an app."""

    id: str
    name: str
    area: AreaOfApp
    items: list[FileItem]
    """In the order of their paths."""
    left_out: int
    """How many more there are."""
    size: int
    """Bytes of all files together."""
    position: str


class FileQuery(Parameters, frozen=True, kw_only=True):
    """Which file of an app."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_PATH)]
    area: AreaOfApp = "outputs"


async def list_files(call: Call[FilesQuery, None]) -> Answer:
    """What it left: its outputs or its checkpoints, as an agent that sees the shared folder lists them."""
    _check_role(call)
    query = call.query
    async with requester(call) as client:
        seq = call.services.follower.seq
        files = Files(client)
        where = await files.find(call.path("app"), query.area)
        entries = await _listed(files, where, query.path)
    base = f"{query.path.strip('/')}/" if query.path.strip("/") else ""
    known = sorted((entry for entry in entries if entry.path), key=lambda entry: entry.path)
    items = [
        FileItem(
            path=f"{base}{entry.path}",
            kind=entry.kind,
            size=entry.size,
            modified=rfc3339(entry.modified) if entry.modified else None,
            note=entry.note,
        )
        for entry in known[: query.limit]
    ]
    size = sum(entry.size for entry in known if entry.kind == "file")
    found = FileList(where.app.id, where.app.name, query.area, items, len(known) - len(items), size, str(seq))
    return await asyncio.to_thread(answer, found, seq, pack=call.packs)


async def _listed(files: Files, where: Where, path: str) -> list[FileEntry]:
    try:
        return await files.listed(where, path)
    except FilesRefused as error:
        if path or error.code not in ("files.not_found", "files.app_unknown"):
            raise
        return []  # It has left none yet.


async def get_file(call: Call[FileQuery, None]) -> web.StreamResponse:
    """One file, as it is; the answer breaks off if the file changes meanwhile."""
    _check_role(call)
    query, services, request = call.query, call.services, call.request
    files = Files(services.requester(call.user))
    async with asyncio.timeout(services.options.limits.answer_s):
        where = await files.find(call.path("app"), query.area)
        entry = next((one for one in await files.listed(where, query.path) if not one.path), None)
    if entry is None or entry.kind != "file":
        raise Missing(f"{query.path} is not a file of {where.app.name}", code="files.not_regular")
    name = query.path.rstrip("/").rpartition("/")[2]
    headers = {
        "Content-Type": FILE,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Length": str(entry.size),
        "Cache-Control": "no-store",
        POSITION: str(services.follower.seq),
        **SECURITY,
    }
    known = call.user if services.door.closed else ""
    with services.addresses.stream(address_of(request.transport), known):
        response = web.StreamResponse(headers=headers)
        await _send(files, where, query.path, entry, response, request, services.options.limits.write_s)
        return response


async def _send(
    files: Files, where: Where, path: str, entry: FileEntry, response: web.StreamResponse, request: web.Request,
    write_s: float,
) -> None:  # fmt: skip
    """Pass the file on.  Raises ConnectionResetError if what came is not the whole file: a client then sees that it is not."""
    digest, left = FileDigest(), entry.size
    question = ReadFile(where.place(path), 0, entry.size, entry.modified)

    async def write(data: bytes) -> None:
        async with asyncio.timeout(write_s):
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)

    async with aclosing(files.read(where, question)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Block):
                digest.add(piece.data)
                left -= len(piece.data)
                await write(piece.data)
            elif isinstance(piece, Zeros):
                digest.add_zeros(piece.blocks)
                for _ in range(piece.blocks):
                    left -= BLOCK
                    await write(bytes(BLOCK))
            elif isinstance(piece, Tail) and (left or piece.digest != digest.of(entry.size)):
                raise ConnectionResetError(f"{humanize('memory', entry.size)} were expected, and other bytes came")
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()


def _check_role(call: Call[FilesQuery, None] | Call[FileQuery, None]) -> None:
    """Raises Forbidden."""
    if not call.services.door.reads_files(call.user):
        text = f"{call.user} is a reader, who asks for no files of apps; a user of their tenant or an operator may"
        raise Forbidden(text, code="identity.role.too_low")


ROUTES = [
    Route(
        "GET", "/v1/apps/{app}/logs", app_logs, "What containers write", query=LogsQuery, tag="apps",
        media=(TEXT, CONTENT_TYPE), problems=(409,),
    ),
    Route(
        "GET", "/v1/apps/{app}/files", list_files, "What files an app left", query=FilesQuery, answer=FileList, tag="apps",
        long=True, problems=(409,),
    ),
    Route(
        "GET", "/v1/apps/{app}/file", get_file, "One file of an app", query=FileQuery, tag="apps", media=(FILE,),
        problems=(409,),
    ),
]  # fmt: skip
