"""The calls of the Docker engine that the runtime needs; the only module of agents that knows aiodocker.

Each call has a timeout and one of two failures: `Unavailable` if the engine did not answer or is in trouble (any
status that the caller did not name), `Rejected` with one of the statuses that it did.  By itself aiodocker has no
default timeout, lets 100 open waits block every further call, returns 900 for "not there", and drops the warnings of a
create.

*Images* that an engine lacks are each pulled once for all callers, in bounded time, or refused in one line.

*Output* comes as the engine's log stream: frames of 1 byte stream number, 3 of zero, 4 of length, then the data
(Engine API, "Stream format" of the attach endpoint).  aiodocker's own reader decodes to text, which would corrupt
binary output, and mistakes a broken connection for the end.  The engine sends each of its messages as one frame: the
time, a space, and the container's output, which is a line or a part of 16 KiB of a longer one.  So a frame begins a
line if the one before it ended one.

Its messages have no numbers from which reading could continue after a lost connection, and messages of stdout and
stderr may not be in the order of their times.  A mark therefore names a time up to two seconds back, and how many
messages since then have been read; the engine keeps their order.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import aiodocker
import aiohttp
import structlog

from agents.runtime.interface import Refused, Unavailable, Wanted, no_mark
from events.requests import LogPiece, LogStretch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from events.kinds import Doing


# --- frames of the log stream -----------------------------------------------------------------------------------------

_HEADER: Final = 8


class Frames:
    """An incremental parser; stdout and stderr come out mixed, in the order of their arrival."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads completed by this data."""
        data = self._rest + data
        at, payloads = 0, []
        while at + _HEADER <= len(data):
            end = at + _HEADER + int.from_bytes(data[at + 4 : at + _HEADER], "big")
            if end > len(data):
                break
            if end > at + _HEADER:
                payloads.append(data[at + _HEADER : end])
            at = end
        self._rest = data[at:]
        return payloads

    @property
    def complete(self) -> bool:
        """Whether the stream ended between two frames."""
        return not self._rest


# --- calls ------------------------------------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

Json = dict[str, Any]

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
_CONNECT_S: Final = 5.0
_ASK_S: Final = 15.0
_CHANGE_S: Final = 60.0
_EVENTS_SILENT_S: Final = 60.0
"""Seconds without an event after which the stream is opened again, since a dead one looks the same."""
_PULL_FAILED: Final = (0, 400, 401, 403, 404, 409, 500, 502, 503, 504)  # 0: reported within the stream of progress
_NO_KEYS: Final = "ctrl-_,ctrl-_,ctrl-_,ctrl-_"
"""Keys that detach a terminal from the engine's exec, chosen so that no user types them: the usual ones (Ctrl-P
Ctrl-Q) belong to shells."""
_GO_DIR: Final = 1 << 31  # Go's io/fs.FileMode
_GO_SYMLINK: Final = 1 << 27


class Rejected(Exception):
    """The engine understood the request and refused it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ExecStream:
    """The streams of an exec that runs."""

    def __init__(self, engine: Engine, exec_id: str, terminal: bool) -> None:
        self._engine = engine
        self.id = exec_id
        self._terminal = terminal
        self._stream = aiodocker.execs.Exec(engine._docker, exec_id, tty=terminal).start(detach=False)

    async def start(self) -> None:
        await self._stream._init()

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece of output with the number of its stream; None at the end.  Raises `Unavailable`."""
        async with self._engine._requesting("output of an exec", None):
            message = await self._stream.read_out()
        return None if message is None else (message.stream, message.data)

    async def write(self, data: bytes) -> None:
        """Raises `Unavailable` if the connection is lost."""
        async with self._engine._requesting("input of an exec", None):
            await self._stream.write_in(data)

    def end_input(self) -> None:
        """Close the exec's standard input; its output continues."""
        response = self._stream._resp
        transport = response.connection.transport if response is not None and response.connection is not None else None
        if transport is not None and transport.can_write_eof():
            transport.write_eof()

    async def resize(self, columns: int, rows: int) -> None:
        """Change its terminal's size.  One that has ended has none, which is not an error."""
        with contextlib.suppress(Rejected):
            async with self._engine._requesting("size of a terminal", known=(400, 404, 409, 500)):
                await aiodocker.execs.Exec(self._engine._docker, self.id).resize(h=rows, w=columns)

    async def inspect(self) -> Json:
        return await self._engine.exec_inspect(self.id)

    async def close(self) -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await self._stream.close()


class Engine:
    """One connection pool to one engine, `unix://PATH` or `tcp://HOST:PORT`."""

    def __init__(self, url: str | None, *, ask_s: float = _ASK_S, change_s: float = _CHANGE_S) -> None:
        """`ask_s` and `change_s` are the timeouts, in seconds, of a query and of a change."""
        self._ask_s = ask_s
        self._change_s = change_s
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._client: aiodocker.Docker | None = None

    async def open(self) -> Json:
        """Connect; return the engine's description of itself (GET /info)."""
        await self.close()
        connector: aiohttp.BaseConnector
        if self.url.startswith("unix://"):
            connector = aiohttp.UnixConnector(self.url.removeprefix("unix://"), limit=0)
            base = "unix://localhost"  # aiodocker appends its paths to it; the connector knows the socket
        elif self.url.startswith("tcp://"):
            connector = aiohttp.TCPConnector(limit=0)
            base = "http://" + self.url.removeprefix("tcp://")
        else:
            raise Unavailable(
                f"{self.url} is not an engine's address: unix://PATH or tcp://HOST:PORT is", code="docker.url.malformed"
            )
        timeout = aiohttp.ClientTimeout(total=self._change_s, sock_connect=_CONNECT_S)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self._client = aiodocker.Docker(base, connector=connector, session=session, timeout=timeout)
        try:
            async with self._requesting("info"):
                info: Json = await self._docker._query_json("info")
        except BaseException:
            await self.close()
            raise
        return info

    async def close(self) -> None:
        """Close the connections.  Open streams end with `Unavailable`."""
        client, self._client = self._client, None
        if client is not None:
            await client.session.close()  # ours, so aiodocker leaves it open
            await client.close()

    @property
    def _docker(self) -> aiodocker.Docker:
        if self._client is None:
            raise Unavailable("the connection to the engine is closed", code="docker.closed")
        return self._client

    @contextlib.asynccontextmanager
    async def _requesting(
        self,
        what: str,
        timeout: float | Literal["ask"] | None = "ask",
        known: tuple[int, ...] = (),
        doing: Doing | None = None,
    ) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._ask_s if timeout == "ask" else timeout):
                yield
        except aiodocker.DockerError as failure:
            if failure.status in known:
                raise Rejected(failure.status, failure.message) from failure
            refusal = f"{failure.message} ({failure.status})"
            raise Unavailable(f"{what}: {refusal}", doing=doing, said=refusal) from failure
        except TimeoutError as failure:
            raise Unavailable(
                f"{what}: no answer in time", doing=doing, said="the engine does not answer in time"
            ) from failure
        except (aiohttp.ClientError, OSError, ValueError, TypeError, RuntimeError) as failure:
            # ValueError, TypeError: an answer that is not the JSON it should be, from a proxy or a dying engine.
            # RuntimeError: aiohttp's for a session or a stream that `close` has closed.
            raise Unavailable(f"{what}: {failure!r}", doing=doing, said=f"the engine: {failure!r}") from failure

    async def list(self, labels: tuple[str, ...]) -> tuple[Json, ...]:
        """Return summaries of containers in any state that carry all these labels."""
        async with self._requesting("list"):
            params = {"all": "1", "filters": json.dumps({"label": labels})}
            return tuple(await self._docker._query_json("containers/json", params=params))

    async def inspect(self, name: str) -> Json | None:
        """Return a container's details, None if it does not exist.  Waits while the engine is starting it."""
        try:
            async with self._requesting(f"inspect {name}", known=(404,)):
                info: Json = await self._docker._query_json(f"containers/{name}/json")
                return info
        except Rejected:
            return None

    async def create(self, name: str, config: Json) -> str:
        """Create a container; return its id.  Raises `Rejected` 400 (bad), 404 (no image), 409 (name taken)."""
        async with self._requesting(f"create {name}", self._change_s, (400, 404, 409), "create"):
            made = await self._docker._query_json(
                "containers/create", "POST", params={"name": name}, data=json.dumps(config)
            )
        for warning in made.get("Warnings") or ():
            log.warning("the engine warns", container=name, warning=warning)
        return str(made["Id"])

    async def pull(self, image: str, first_s: float, total_s: float) -> None:
        """Fetch an image; `first_s` is the timeout, in seconds, of the first progress message, `total_s` the timeout of
        the pull.

        Raises `Rejected` with the engine's or the registry's words, 408 if they took too long.
        """
        docker = self._docker
        timer = asyncio.timeout(first_s)
        begun = asyncio.get_running_loop().time()
        heard = False
        try:
            async with self._requesting(f"pull {image}", None, known=_PULL_FAILED), timer:
                async for _ in docker.images.pull(image, stream=True):
                    if not heard:
                        heard = True
                        timer.reschedule(begun + total_s)
        except Unavailable as failure:
            if timer.expired():
                spent = f"{total_s / 60:.0f} minutes were not enough" if heard else f"no answer in {first_s:.0f} s"
                raise Rejected(408, spent) from failure
            raise

    async def start(self, name: str) -> None:
        """Start it; a running one is not an error.  Raises `Rejected` 400, 404, 409 or 500, as the engine pleases."""
        async with self._requesting(f"start {name}", self._change_s, (400, 404, 409, 500), "start"):
            await self._docker.containers.container(name).start()

    async def kill(self, name: str, signal: str) -> None:
        """Send a signal; a stopped or missing one is not an error."""
        with contextlib.suppress(Rejected):
            async with self._requesting(f"kill {name}", known=(404, 409), doing="stop"):
                await self._docker.containers.container(name).kill(signal=signal)

    async def wait(self, name: str, timeout: float) -> bool:
        """Return whether it ended within `timeout` seconds."""
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        timer = asyncio.timeout(timeout)
        try:
            async with self._requesting(f"wait {name}", None, known=(404,)), timer:
                await self._docker.containers.container(name).wait(timeout=unlimited)
        except Rejected:
            return True
        except Unavailable:
            if timer.expired():
                return False
            raise
        return True

    async def delete(self, name: str) -> None:
        """Delete it; a missing one is not an error.  Raises `Rejected` 409 if it runs, or is being removed."""
        try:
            async with self._requesting(f"remove {name}", self._change_s, (404, 409), "remove"):
                await self._docker.containers.container(name).delete(v=True)
        except Rejected as answer:
            if answer.status == 409:
                raise

    async def executable(self, name: str, path: str) -> bool | None:
        """Return whether a path in a container, running or not, is an executable file; None if that is unknown."""
        for _ in range(2):
            stat = await self._stat(name, path)
            if stat is None or not stat:
                return None if stat is None else False
            mode = int(stat["mode"])
            if not mode & _GO_SYMLINK:
                return not mode & _GO_DIR and bool(mode & 0o111)
            path = stat["linkTarget"]  # the engine has resolved all links in it
        return None

    async def _stat(self, name: str, path: str) -> Json | None:
        """Return {} if the path does not exist, None if that is unknown."""
        async with self._requesting(f"stat {path} in {name}"):
            url = self._docker._canonicalize_url(f"containers/{name}/archive")
            async with self._docker.session.head(url, params={"path": path}) as answer:
                if answer.status == 404:
                    return {}
                if answer.status != 200:
                    return None
                stat: Json = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
                return stat

    async def stats(self, name: str) -> Json:
        """Return one sample of a running container's use."""
        async with self._requesting(f"stats of {name}"):
            params = {"stream": "false", "one-shot": "true"}
            sample: Json = await self._docker._query_json(f"containers/{name}/stats", params=params)
            return sample

    async def exec_create(self, name: str, command: tuple[str, ...]) -> str:
        """Create an exec; return its id.  Raises `Rejected` 404 or 409 if no such container runs."""
        body = {"Cmd": list(command), "AttachStdout": True, "AttachStderr": True}
        async with self._requesting(f"exec in {name}", known=(404, 409)):
            made = await self._docker._query_json(f"containers/{name}/exec", "POST", data=body)
            return str(made["Id"])

    async def exec_start(self, exec_id: str, timeout: float, keep: int) -> tuple[bool, bytes]:
        """Run it to its end.  Return whether it ended within `timeout` seconds, and the last `keep` bytes of its output.

        Raises `Rejected` 400 if there is no such command, 404 or 409 if its container has ended.
        """
        output = b""
        stream = self._docker.containers.exec(exec_id).start(detach=False)
        timer = asyncio.timeout(timeout)
        try:
            async with self._requesting("exec", None, known=(400, 404, 409)), timer, stream:
                while (message := await stream.read_out()) is not None:
                    output = (output + message.data)[-keep:]
        except Unavailable:
            if timer.expired():
                return False, output
            raise
        return True, output

    async def exec_attach(
        self, name: str, command: tuple[str, ...], variables: dict[str, str], *, terminal: tuple[int, int] | None
    ) -> ExecStream:
        """Create an exec with standard input, and start it; `terminal` gives columns and rows of one.

        Raises `Rejected` 400 if there is no such command, 404 or 409 if no such container runs."""
        body: Json = {
            "Cmd": list(command),
            "Env": [f"{variable}={value}" for variable, value in variables.items()],
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": terminal is not None,
            "DetachKeys": _NO_KEYS,
        }
        if terminal is not None:
            body["ConsoleSize"] = terminal[
                ::-1
            ]  # Engines before 23 have no such field; there the size follows the start.
        async with self._requesting(f"exec in {name}", known=(400, 404, 409)):
            made = await self._docker._query_json(f"containers/{name}/exec", "POST", data=body)
            attached = ExecStream(self, str(made["Id"]), terminal is not None)
            await attached.start()
        if terminal is not None:
            await attached.resize(*terminal)
        return attached

    async def exec_inspect(self, exec_id: str) -> Json:
        """Return `Running`, `ExitCode`, `Pid` (on this machine)."""
        async with self._requesting("inspect of an exec"):
            info: Json = await self._docker._query_json(f"exec/{exec_id}/json")
            return info

    async def logs(
        self, name: str, *, follow: bool, tail: int | None, since: int | None
    ) -> AsyncGenerator[tuple[bytes, ...], None]:
        """Yield the messages of stdout and stderr, each with its time before it; `since` is in UTC nanoseconds.  Raises
        `Rejected` 404, `Unavailable` if the stream breaks."""
        params = {
            "stdout": "1",
            "stderr": "1",
            "timestamps": "1",
            "follow": str(int(follow)),
            "tail": "all" if tail is None else str(tail),
        }
        if since is not None:
            params["since"] = f"{since // 10**9}.{since % 10**9:09}"
        frames = Frames()
        stream = self._stream(f"logs of {name}", f"containers/{name}/logs", params, None, (404,))
        async with contextlib.aclosing(stream):
            async for data in stream:
                if payloads := frames.feed(data):
                    yield tuple(payloads)
        if not frames.complete:
            raise Unavailable(f"logs of {name}: broken off within a frame", code="container.logs.cut_off")

    async def remembered(self, labels: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the engine's remembered events of containers with these labels, oldest first: (action, container's id).  It
        keeps the last 256 events of all its containers, and none from before its start.

        The query ends at the engine's own time, since its clock may be another machine's: with a time behind that clock the
        latest events would be missing, and with a time ahead of it the engine would wait."""
        async with self._requesting("the engine's time"):
            now = datetime.fromisoformat((await self._docker._query_json("info"))["SystemTime"])
        filters = json.dumps({"type": ["container"], "label": labels})
        params = {"since": "1", "until": f"{now.timestamp():.6f}", "filters": filters}
        async with self._requesting("events so far"):
            response = await self._docker._do_query("events", "GET", params=params)
            try:
                events = [json.loads(line) for line in (await response.read()).splitlines()]
            finally:
                response.close()
        return tuple((str(event["Action"]).partition(":")[0], str(event["Actor"]["ID"])) for event in events)

    async def events(self, labels: tuple[str, ...]) -> AsyncGenerator[None, None]:
        """Yield once when connected, then for every event of a container with these labels; end or raise `Unavailable` when
        the connection does."""
        params = {"filters": json.dumps({"type": ["container"], "label": labels})}
        stream = self._stream("events", "events", params, _EVENTS_SILENT_S, ())
        async with contextlib.aclosing(stream):
            async for _ in stream:
                yield None

    async def _stream(
        self, what: str, path: str, params: dict[str, str], silent: float | None, known: tuple[int, ...]
    ) -> AsyncGenerator[bytes, None]:
        """Yield data as it arrives; first an empty piece once the engine has answered."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silent)
        async with self._requesting(what, known=known):
            response = await self._docker._do_query(path, "GET", params=params, timeout=timeout)
        try:
            yield b""
            while True:
                async with self._requesting(what, timeout=None):
                    data = await response.content.readany()
                if not data:
                    return
                yield data
        finally:
            response.close()


# --- images -----------------------------------------------------------------------------------------------------------

_FIRST_S: Final = 10.0
_TOTAL_S: Final = 600.0
_WAIT_S: Final = 12.0
_REMEMBERED_S: Final = 30.0
_ABSENT: Final = re.compile(
    r"not found|not exist|denied|unauthorized|manifest unknown|no matching manifest", re.IGNORECASE
)
_UNREACHABLE: Final = re.compile(
    r"dial |lookup |no such host|no answer|timeout|canceled|refused|unreachable|\bEOF\b|x509|tls", re.IGNORECASE
)
_FULL: Final = re.compile(r"no space left|disk quota|read-only file system|input/output error", re.IGNORECASE)
"""The node's own trouble, which must not count against an app."""
_KEPT_WORDS: Final = 300


class Images:
    """The pulls of one engine.  A pull continues when its callers are cancelled, and ends with `close`."""

    def __init__(
        self, engine: Engine, *, first_s: float = _FIRST_S, total_s: float = _TOTAL_S, wait_s: float = _WAIT_S
    ) -> None:
        """`first_s`: seconds to the registry's first answer; `total_s`: for the whole pull; `wait_s`: how long one call
        waits.  `wait_s` exceeds `first_s`, so that one call suffices to report an unreachable registry, and is small, since a
        waiting agent cannot act on new records."""
        self._engine = engine
        self._first_s = first_s
        self._total_s = total_s
        self._wait_s = wait_s
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self.ended = 0
        """Number of pulls that have ended, successfully or not."""

    async def fetch(self, image: str) -> None:
        """Wait until the engine has pulled it.

        Raises `Refused` ("image") if it cannot be pulled, `Unavailable` if that takes longer than one call waits: the next
        call waits for the same pull.
        """
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = asyncio.create_task(self._pull(image), name=f"pull {image}")
            pull.add_done_callback(lambda done: self._ended(image, done))
        await asyncio.wait([pull], timeout=self._wait_s)
        if not pull.done():
            raise Unavailable(f"{image} is being pulled", code="container.image.pulling")
        if self._pulls.get(image) is pull:
            del self._pulls[image]  # a later call starts a new try
        if pull.cancelled():
            raise Unavailable(f"the pull of {image} was ended", code="container.image.pull_ended")
        pull.result()

    async def close(self) -> None:
        """End all pulls; the engine keeps the layers that it has."""
        pulls = list(self._pulls.values())
        self._pulls.clear()
        for pull in pulls:
            pull.cancel()
        if pulls:
            await asyncio.wait(pulls)

    async def _pull(self, image: str) -> None:
        try:
            await self._engine.pull(image, self._first_s, self._total_s)
        except Rejected as answer:
            if _FULL.search(answer.message):
                raise Unavailable(
                    f"{image} cannot be pulled: {answer.message}",
                    code="container.image.disk_full",
                    doing="pull",
                    said=answer.message,
                ) from answer
            raise refused(image, answer.message) from answer

    def _ended(self, image: str, pull: asyncio.Task[None]) -> None:
        """Keep the outcome for a while for callers between two calls, and no longer: it gets stale."""
        self.ended += 1
        if not pull.cancelled():
            pull.exception()  # marks it as retrieved: perhaps no caller waits
        asyncio.get_running_loop().call_later(_REMEMBERED_S, self._forget, image, pull)

    def _forget(self, image: str, pull: asyncio.Task[None]) -> None:
        if self._pulls.get(image) is pull:
            del self._pulls[image]


def refused(image: str, message: str) -> Refused:
    """Return which image, why, and what to do, in one line; `message` is the engine's."""
    text = " ".join(message.split())[:_KEPT_WORDS]
    load = "load it on this node (docker pull, docker load or docker build)"
    if _ABSENT.search(text) and "no such host" not in text:
        why, then = f"the registry does not have it, or not for everyone ({text})", f"check the name, or {load}"
    elif _UNREACHABLE.search(text):
        why, then = f"no registry can be reached ({text})", load
    else:
        why, then = text, load
    return Refused(
        "image",
        f"this node does not have the image {image}, and cannot pull it: {why}; {then}",
        code="container.image.unavailable",
    )


# --- output -----------------------------------------------------------------------------------------------------------

_SECOND: Final = 10**9
_PIECE: Final = 64 * 1024
_STRETCH: Final = 16
"""Bytes that a stretch takes in addition to its data."""
_MARK: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,18})")


class Marks:
    """Where reading is: counts messages, by the whole second of their time."""

    def __init__(self, since: int | None, tail: int | None) -> None:
        """As the engine was asked: `since` in UTC ns.  Without it, and with a `tail`, which may leave out messages of later
        times than that, the position counts from the first message."""
        self._first = since if tail is None else None
        self._newest = 0
        self._counts: dict[int, int] = {}

    def read(self, time: int) -> None:
        """Count a message."""
        if self._first is None:
            self._first = time
        second = time // _SECOND
        if second > self._newest:
            self._newest = second
            self._counts = {at: count for at, count in self._counts.items() if at >= second - 1}
        if time >= self._first and second >= self._newest - 1:
            self._counts[second] = self._counts.get(second, 0) + 1

    @property
    def reached(self) -> bool:
        """Whether a message has been read."""
        return self._newest > 0

    def __str__(self) -> str:
        since = max((self._newest - 1) * _SECOND, self._first or 0)
        return f"{since}-{sum(self._counts.values())}"


async def read_logs(engine: Engine, name: str, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
    """Yield the output in pieces.  Raises `engine.Rejected`, `Unavailable`, and RuntimeFault for a mark that is none.

    An engine may end a followed answer when its container ends, and before the last message.  So the output is then
    read once more, from the position that was reached."""
    since, tail, skip = wanted.since, wanted.tail, 0
    if wanted.after:
        match = _MARK.fullmatch(wanted.after)
        if match is None:
            raise no_mark(wanted.after)
        since, tail, skip = int(match[1]), None, int(match[2])
    if since is not None:
        since = max(since, 0)
    marks = Marks(since, tail)
    async with contextlib.aclosing(_answer(engine, name, wanted.follow, tail, since, skip, marks)) as pieces:
        async for piece in pieces:
            yield piece
    if wanted.follow and (marks.reached or tail is None):
        async with contextlib.aclosing(read_logs(engine, name, Wanted(after=str(marks)))) as pieces:
            async for piece in pieces:
                yield piece


async def _answer(
    engine: Engine, name: str, follow: bool, tail: int | None, since: int | None, skip: int, marks: Marks
) -> AsyncGenerator[LogPiece, None]:
    """Yield one answer of the engine, without its first `skip` messages."""
    stretches, size = list[LogStretch](), 0
    async with contextlib.aclosing(engine.logs(name, follow=follow, tail=tail, since=since)) as batches:
        async for batch in batches:
            for payload in batch:
                time, data = divided(payload)
                marks.read(time)
                if skip:
                    skip -= 1
                    continue
                stretches.append(LogStretch(time, data))
                size += len(data) + _STRETCH
                if size >= _PIECE:
                    yield LogPiece(stretches, str(marks))
                    stretches, size = [], 0
            if stretches:
                yield LogPiece(stretches, str(marks))
                stretches, size = [], 0


def divided(payload: bytes) -> tuple[int, bytes]:
    """Return time (UTC ns) and data of one of the engine's messages. Raises Unavailable if it has no time."""
    stamp, space, data = payload.partition(b" ")
    try:
        whole, _, fraction = stamp.decode("ascii").rstrip("Z").partition(".")
        seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
        time = seconds * _SECOND + int(fraction.ljust(9, "0")[:9])
    except ValueError:
        space = b""
        time = 0
    if not space:
        raise Unavailable("the engine has sent output without a time", code="container.logs.malformed")
    return time, data
