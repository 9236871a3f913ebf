"""Commands that go into containers: `dorm exec`, `shell` and `port-forward`, with a session at APP or APP/RANK.

`Attached` connects a session with this program's input, output, signals and terminal.  A descriptor is read and written in
threads.  Making it non-blocking instead would change it for all who share it: the shell, and the programs before and behind
this one in a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import shutil
import signal
import sys
import termios
import threading
import tty
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete
from dorm.cli.errors import FAILED, INTERRUPTED, TIMED_OUT, Fail, WrongUsage
from dorm.cli.options import seconds_of
from dorm.cli.output import progress_console
from dorm.cli.signals import receives_ctrl_c
from dorm.cli.terminal import print_line
from events.addresses import joined, loopback
from events.errors import DormError
from events.sessions import CHUNK, Begun, Ended, Output, Size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dorm.core.state import State

    _Future = asyncio.Future[bytes]
    from collections.abc import Callable, Coroutine

    from dorm.client.sessions import Place, Session


# --- which container --------------------------------------------------------------------------------------------------


def split(given: str) -> tuple[str, int | None]:
    """Return the app and the rank, None if none is named.  Raises WrongUsage."""
    app, slash, rank = given.partition("/")
    if not slash:
        return app, None
    if not app or not rank.isdecimal() or len(rank) > 6:
        raise WrongUsage(
            f"{given}: name an app, or an app and a rank, such as train/0", code="usage.container.malformed"
        )
    return app, int(rank)


def complete_container(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps, and behind a slash the ranks of one."""

    def names(state: State) -> Iterable[str]:
        app, slash, _ = incomplete.partition("/")
        if not slash:
            return [app.name for app in state.apps.values() if not app.ended]
        named = state.find_app(app)
        current = named.current if named is not None else None
        return [f"{app}/{rank}" for rank in range(len(current.containers))] if current is not None else []

    return complete(ctx, incomplete, names)


Container = Annotated[
    str,
    typer.Argument(
        metavar="APP[/RANK]", help="The app and its rank; default: the first running one.",
        autocompletion=complete_container,
    ),
]  # fmt: skip


# --- this program's input and output ----------------------------------------------------------------------------------


class InputReader:
    """Reads a descriptor, nothing before it is asked for.  A read that is under way does not keep the program from ending."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._requests: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, _Future]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="input", daemon=True).start()

    async def read(self) -> bytes:
        """Return what there is, b"" at the end."""
        loop = asyncio.get_running_loop()
        answer: _Future = loop.create_future()
        self._requests.put((loop, answer))
        return await answer

    def _work(self) -> None:
        while True:
            loop, answer = self._requests.get()
            try:
                data = os.read(self._descriptor, CHUNK)
            except OSError:  # The terminal is gone, or the descriptor is closed.
                data = b""
            with contextlib.suppress(RuntimeError):  # The program is ending.
                loop.call_soon_threadsafe(_give, answer, data)


def _give(answer: _Future, data: bytes) -> None:
    if not answer.done():
        answer.set_result(data)


async def write(descriptor: int, data: bytes) -> None:
    """Write all of it; the caller waits as long as the reader does.  Raises BrokenPipeError, OSError."""
    await asyncio.to_thread(_write, descriptor, data)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # Another program has made it non-blocking.
            import select

            select.select([], [descriptor], [])


def terminal_size() -> Size:
    columns, rows = shutil.get_terminal_size()
    return Size(max(1, columns), max(1, rows))


class RawTerminal:
    """A terminal that passes every key on as it is typed.  It is as before once this is closed, whatever happened."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)

    def set(self) -> None:
        tty.setraw(self._descriptor, termios.TCSANOW)

    def restore(self) -> None:
        with contextlib.suppress(termios.error):  # It is gone.
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)


@contextlib.contextmanager
def raw_terminal(descriptor: int) -> Iterator[RawTerminal]:
    """Make a terminal raw while this is open."""
    import atexit

    terminal = RawTerminal(descriptor)
    atexit.register(terminal.restore)
    try:
        terminal.set()
        yield terminal
    finally:
        terminal.restore()
        atexit.unregister(terminal.restore)


# --- a session with its streams and signals ---------------------------------------------------------------------------

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a command gets as if it ran here."""
_ENDING: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)
"""Signals that end a shell on a terminal, where keys already arrive as such."""
_AT_ONCE: Final = 3
"""Number of Ctrl-C that a command gets to end by itself."""
_NOT_FOUND: Final = 127


class Attached:
    """One session, with this program's standard streams."""

    def __init__(self, session: Session, *, with_input: bool) -> None:
        self._session = session
        self._input = InputReader(0) if with_input else None
        self._begun = asyncio.Event()
        self._stopped = asyncio.Event()
        self._cause = 0
        self._interrupts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, timeout: float | None = None) -> int:
        """Return the command's exit code.  Raises Fail if it did not end by itself, or `timeout` seconds were over."""
        with self._signals(_PASSED_ON, self._pass_on):
            return await self._until_ended(timeout)

    async def run_on_terminal(self, terminal: int, timeout: float | None = None) -> int:
        """The same with this program's terminal in raw mode, whose size the command's follows."""
        with (
            raw_terminal(terminal) as raw,
            self._signals(_ENDING, self._stop),
            _signal(signal.SIGCONT, raw.set),
            _signal(signal.SIGWINCH, self._resized),
        ):
            return await self._until_ended(timeout)

    async def _until_ended(self, timeout: float | None) -> int:
        printing = asyncio.create_task(self._print())
        others = [
            asyncio.create_task(coroutine) for coroutine in (self._session.keep(), self._stopped.wait(), self._feed())
        ]
        try:
            await asyncio.wait({printing, others[1]}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if printing.done():
                return self._code(printing.result())
        finally:
            for task in (printing, *others, *self._tasks):
                task.cancel()
            await asyncio.gather(printing, *others, *self._tasks, return_exceptions=True)
        if self._stopped.is_set():
            return INTERRUPTED if self._cause == signal.SIGINT else 128 + self._cause
        raise Fail(f"the command did not end within {timeout:g} s, and was killed", TIMED_OUT, code="session.timed_out")

    def _code(self, ended: Ended) -> int:
        if not ended.code:
            return ended.exit_code if ended.exit_code is not None else FAILED
        raise Fail(ended.reason, _NOT_FOUND if ended.exit_code == _NOT_FOUND else FAILED, code=ended.code)

    async def _print(self) -> Ended:
        async with contextlib.aclosing(self._session.answers()) as answers:
            async for answer in answers:
                match answer:
                    case Begun():
                        self._begun.set()
                    case Output():
                        await write(2 if answer.stream == 2 else 1, answer.data)
                    case Ended():
                        return answer
        raise AssertionError("an answer ends with its end, or an error")

    async def _feed(self) -> None:
        await self._begun.wait()
        if self._input is None:
            await self._session.write(b"", last=True)
            return
        while data := await self._input.read():
            for place in range(0, len(data), CHUNK):
                if not await self._session.write(data[place : place + CHUNK]):
                    return
        await self._session.write(b"", last=True)

    # --- signals --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]) -> Iterator[None]:
        with contextlib.ExitStack() as handlers:
            for number in numbers:
                if number != signal.SIGINT or receives_ctrl_c():
                    handlers.enter_context(_signal(number, handler, number))
            if signal.SIGHUP not in numbers and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                handlers.enter_context(_signal(signal.SIGHUP, self._stop, signal.SIGHUP))
            yield

    def _pass_on(self, number: int) -> None:
        self._cause = number
        self._interrupts += number == signal.SIGINT
        if not self._begun.is_set() or self._interrupts >= _AT_ONCE:
            self._stopped.set()
            return
        self._start(self._session.signal(number))

    def _stop(self, number: int) -> None:
        self._cause = number
        self._stopped.set()

    def _resized(self) -> None:
        self._start(self._session.resize(terminal_size()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.contextmanager
def _signal(number: int, handler: Callable[..., None], *arguments: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, handler, *arguments)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def on_terminal() -> bool:
    """Return whether this program reads from and writes to a terminal."""
    return sys.stdin.isatty() and os.isatty(1)


# --- exec -------------------------------------------------------------------------------------------------------------


@command(user=True, context_settings={"allow_interspersed_args": False})
async def exec_command(
    cx: Cluster,
    container: Container,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program, and its arguments.")],
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Allocate a terminal, as `dorm shell` does.")] = False,
    no_input: Annotated[
        bool, typer.Option("--no-input", "-n", help="Use an empty standard input; for loops in shell scripts.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Kill the command after this time, such as 30s or 5m; default: never."),
    ] = None,
) -> None:
    """Run a command in a container of an app, next to its program.

    The command has the container's user, environment and folder. Its input,
    output and errors are those of `dorm exec`, and so is its exit status; Ctrl-C
    is passed on. It is killed when `dorm exec` ends, when the container ends, and
    when the node's agent dies.

    The app's users, operators and admins may do this. The log records the user
    and the command (`dorm events --kind SessionStarted`).

    The exit status is that of the command, 124 if the time ran out, 127 if there
    is no such program, and 1 if the container has ended or does not run.

    [bold]Examples[/]

      dorm exec train -- nvidia-smi

      dorm exec train/2 -- py-spy dump --pid 1

      dorm exec train -- tar c logs | tar x
    """

    app, rank = split(container)
    if command and command[0] == "--":
        command = command[1:]
    if not command or not command[0]:
        raise WrongUsage("COMMAND: name a program, as in `dorm exec train -- ls`", code="usage.nothing_to_do")
    seconds = seconds_of("--timeout", timeout)
    if tty and (no_input or not on_terminal()):
        raise WrongUsage("--tty needs this command's input and output to be a terminal", code="usage.no_terminal")

    async with cx.client() as connected:
        # Imported last, as `client` says.
        from dorm.client.sessions import Session, running_place

        place = running_place(await connected.app(app), rank)
        if tty:
            size, term = terminal_size(), os.environ.get("TERM", "")
            session = Session(connected, place, "exec", command, terminal=size, term=term)
            code = await Attached(session, with_input=True).run_on_terminal(0, seconds)
        else:
            session = Session(connected, place, "exec", command)
            code = await Attached(session, with_input=not no_input).run(seconds)
    if code:
        raise typer.Exit(code)


# --- shell ------------------------------------------------------------------------------------------------------------

_BEST: Final = ("sh", "-c", "command -v bash > /dev/null && exec bash; exec sh")


@command(user=True)
async def shell(
    cx: Cluster,
    container: Container,
    program: Annotated[
        str | None,
        typer.Option("--shell", metavar="PROGRAM", help="The shell; default: bash, or sh if there is no bash."),
    ] = None,
) -> None:
    """Open a shell in a container of an app, next to its program.

    The shell has its own terminal of the same size. Ctrl-D or `exit` ends the
    shell and everything that was started in it; so does closing the local
    terminal. `dorm exec` runs a single command, also in scripts.

    [bold]Examples[/]

      dorm shell train

      dorm shell train/3 --shell python3
    """

    app, rank = split(container)
    if not on_terminal():
        raise WrongUsage(
            f"a shell needs a terminal; in a script use `dorm exec {container} -- COMMAND`", code="usage.no_terminal"
        )

    async with cx.client() as connected:
        # Imported last, as `client` says.
        from dorm.client.sessions import Session, running_place

        place = running_place(await connected.app(app), rank)
        _print_where(place)
        shells = (program,) if program else _BEST
        term = os.environ.get("TERM", "")
        session = Session(connected, place, "shell", shells, terminal=terminal_size(), term=term)
        code = await Attached(session, with_input=True).run_on_terminal(0)
    if code:
        raise typer.Exit(code)


def _print_where(place: Place) -> None:
    progress_console.print(f"{place} on node {place.node}; Ctrl-D leaves it", markup=False, highlight=False)


# --- port forward -----------------------------------------------------------------------------------------------------

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
        from dorm.client.sessions import Session, running_place

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
        self._printed = ""

    async def run(self, local: int) -> None:
        """Forward until the session ends.  Raises Fail if the local port is taken, or when the container has ended."""
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(task := asyncio.ensure_future(self._connection(reader, writer)))
            task.add_done_callback(connections.discard)

        try:
            server = await asyncio.start_server(serve, loopback(), local, limit=CHUNK, start_serving=False)
        except OSError as error:
            raise _cannot_listen(error, local, self._port) from None
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
        print_line(
            f"{joined(host, local)} -> port {self._port} of {place} on node {place.node}; Ctrl-C ends it", flush=True
        )

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
                            self._print_failure(reason, code)
        except DormError as error:
            self._print_failure(str(error), error.code)
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

    def _print_failure(self, reason: str, code: str) -> None:
        """Say why a connection failed, each reason once: browsers try many times."""
        if reason != self._printed:
            self._printed = reason
            print_line(f"warning: {reason} [{code}]", error=True, flush=True)


def _cannot_listen(error: OSError, local: int, port: int) -> Fail:
    if error.errno == errno.EADDRINUSE:
        return Fail(
            f"port {local} of this machine is taken; name another one, such as {_another_port(local)}:{port}, or 0:{port} for any that "
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


def _another_port(local: int) -> int:
    return local + 1 if local < _HIGHEST else local - 1
