"""`dorm port-forward`: a port of a container, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.containers.naming import Container, split
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.terminal import say
from dorm.local.loopback import loopback
from events.addresses import joined
from events.errors import DormError
from events.sessions.messages import CHUNK, Begun, Ended, Output

if TYPE_CHECKING:
    from dorm.client.sessions.session import Session

_HIGHEST: Final = 65535


@command(user=True)
async def port_forward(
    cx: Cluster,
    container: Container,
    ports: Annotated[
        str,
        typer.Argument(
            metavar="[LOCAL:]PORT",
            help="The container's port, optionally preceded by the local port (0: any free one).",
        ),
    ],
) -> None:
    """Forward a local port to a port of a container: TensorBoard, a notebook, a debugger.

    It accepts connections on 127.0.0.1 until Ctrl-C. Through the cluster's NATS
    server, it passes each on to the process of this container that listens on the
    port, so the node publishes no port. If the app itself does not listen, start
    a program that does with `dorm exec`.

    [bold]Examples[/]

      dorm port-forward train 6006

      dorm port-forward train/2 8080:8888
    """
    app, rank = split(container)
    local, port = _ports(ports)

    from dorm.cli.signals import run_until_stopped

    async with cx.client() as connected:
        # Imported last, as `client` says.
        from dorm.client.sessions.finding import running_place
        from dorm.client.sessions.session import Session

        place = running_place(await connected.app(app), rank)
        forwarding = _Forwarding(Session(connected, place, "forward", port=port), port)
        await run_until_stopped(forwarding.run(local))


def _ports(given: str) -> tuple[int, int]:
    """Return the local and the container's port."""
    local, colon, port = given.rpartition(":")
    if not colon:
        local = port
    if not (local.isdecimal() and port.isdecimal() and int(local) <= _HIGHEST and 1 <= int(port) <= _HIGHEST):
        raise WrongUsage(
            f"{given}: write a port such as 6006, or LOCAL:PORT such as 8080:6006", code="usage.port.malformed"
        )
    return int(local), int(port)


class _Forwarding:
    """All connections of one session."""

    def __init__(self, session: Session, port: int) -> None:
        self._session = session
        self._port = port
        self._count = 0
        self._said = ""

    async def run(self, local: int) -> None:
        """Forward until the session ends.  Raises Fail if the local port is taken, or when the container has ended."""
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(task := asyncio.ensure_future(self._connection(reader, writer)))
            task.add_done_callback(connections.discard)

        try:
            server = await asyncio.start_server(serve, loopback(), local, limit=CHUNK, start_serving=False)
        except OSError as error:
            raise _taken(error, local, self._port) from None
        keeping = asyncio.create_task(self._session.keep())
        try:
            async with server, contextlib.aclosing(self._session.answers()) as answers:
                async for answer in answers:
                    if isinstance(answer, Begun):
                        await server.start_serving()
                        self._print_where(server)
                    elif isinstance(answer, Ended):
                        raise Fail(answer.reason, code=answer.code)
        finally:
            for task in (keeping, *connections):
                task.cancel()
            await asyncio.gather(keeping, *connections, return_exceptions=True)

    def _print_where(self, server: asyncio.Server) -> None:
        place, (host, local) = self._session.place, server.sockets[0].getsockname()[:2]
        say(f"{joined(host, local)} -> port {self._port} of {place} on node {place.node}; Ctrl-C ends it", flush=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        number, sending = self._count, None
        try:
            async with contextlib.aclosing(self._session.connect(number)) as answers:
                async for answer in answers:
                    match answer:
                        case Begun():
                            sending = asyncio.create_task(self._send(reader, number))
                        case Output():
                            writer.write(answer.data)
                            await writer.drain()
                        case Ended(code=code, reason=reason) if code:
                            self._complain(reason, code)
        except DormError as error:
            self._complain(str(error), error.code)
        except OSError:
            pass  # The local program has closed its connection.
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            writer.close()

    async def _send(self, reader: asyncio.StreamReader, number: int) -> None:
        while data := await reader.read(CHUNK):
            if not await self._session.write(data, connection=number):
                return
        await self._session.write(b"", last=True, connection=number)

    def _complain(self, reason: str, code: str) -> None:
        """Say why a connection failed, each reason once: browsers try many times."""
        if reason != self._said:
            self._said = reason
            say(f"warning: {reason} [{code}]", error=True, flush=True)


def _taken(error: OSError, local: int, port: int) -> Fail:
    if error.errno == errno.EADDRINUSE:
        return Fail(
            f"port {local} of this machine is taken; name another one, such as {_other(local)}:{port}, or 0:{port} for any that "
            "is free",
            code="session.local_port.taken",
        )
    if error.errno == errno.EACCES:
        return Fail(
            f"only root may listen on port {local}; name another one, such as {8000 + local % 1000}:{port}",
            code="session.local_port.forbidden",
        )
    return Fail(
        f"nothing can listen on port {local} of this machine: {error.strerror}", code="session.local_port.failed"
    )


def _other(local: int) -> int:
    return local + 1 if local < _HIGHEST else local - 1
