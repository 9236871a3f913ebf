"""Starts and ends a job over the containers of one generation, without ssh: `python3 dorm-launcher.py ROLE …`.

The agent writes this file into every container, where it runs with only Python's standard library.

    head    the first container: waits until all others have connected, runs its command (mpirun), ends with its exit code
    worker  every other container: connects to the head, runs the daemons of Open MPI that the head sends, or a command of its
            own (a TensorFlow server, which never ends by itself), ends when the head does and as it does
    agent   what mpirun calls instead of ssh, `agent HOST COMMAND…`: has the head pass the command to that host's container
    rank    started by mpirun's daemons, one for each process of the job: notes its process id, then becomes the app's command,
            as this container has it (`dorm-command.json`)

Workers connect to the head, never the other way, so no container accepts commands from a caller. Only an agent that
knows the head's token, which is in mpirun's environment, can pass on a command. The network is trusted, as MPI does.

All of that runs in process groups of its own: SIGTERM reaches this program alone, which passes it to the processes that were
started by `rank`.  They save and end; the head's command ends after them, and everything else with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import json
import os
import secrets
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from asyncio.subprocess import Process
    from collections.abc import Callable, Coroutine
    from typing import Any

    Message = dict[str, Any]

HOST_PREFIX = "dorm-rank-"
"""Containers of one node share its name, so the hostfile gives each a name of its own, which no resolver has to know."""
TOKEN, HEAD, FOLDER, DIRECTORY = "DORM_LAUNCH_TOKEN", "DORM_LAUNCH_HEAD", "DORM_LAUNCH_FOLDER", "DORM_LAUNCH_DIRECTORY"
NOTE = "dorm-pid"
"""Begins the name of a file that notes a process of the job."""
COMMAND = "dorm-command.json"
"""The file with a container's own words of the app's command, of which some may differ between containers."""
PORT_TAKEN = errno.EADDRINUSE
"""98, with which an app reports to Dorm that a port is taken."""
STOPPED = 128 + signal.SIGTERM
RETRY_S = 0.1
HELLO_S = 10.0
END_S = 5.0
"""Seconds that daemons may take to end after the job has."""
LINE = 1 << 20


def say(what: str) -> None:
    print("dorm-launcher: " + what, file=sys.stderr, flush=True)


async def read(reader: StreamReader) -> Message | None:
    """Return the next message, None at the end of the connection or for anything that is not a message."""
    try:
        message = json.loads(await reader.readline() or b"null")
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def send(writer: StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def settle(future: asyncio.Future[int], result: int) -> None:
    """Set the result unless there is one: the first counts."""
    if not future.done():
        future.set_result(result)


async def close(writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await writer.drain()
    writer.close()


def identity() -> Message:
    return {"app": os.environ.get("DORM_APP", ""), "generation": os.environ.get("DORM_GENERATION", "")}


def start_time_of(pid: int) -> int:
    """Return when the process started, in the kernel's ticks since boot (proc(5)); 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def terminate(note: str) -> None:
    """Send SIGTERM to the process that a note names, unless it has ended."""
    with contextlib.suppress(OSError, ValueError):  # the folder is the app's own, so there may be other files in it
        _, pid, start_time = note.split(".")
        if start_time_of(int(pid)) == int(start_time):  # else another has its number
            os.kill(int(pid), signal.SIGTERM)


class Stop:
    """A request to end, passed as SIGTERM to the app's processes in this container, also to those that start later."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._done: set[str] = set()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.asked.set)

    async def pass_on(self) -> None:
        await self.asked.wait()
        while True:
            for name in os.listdir(os.environ[FOLDER]):
                if name.startswith(NOTE + ".") and name not in self._done:
                    self._done.add(name)
                    terminate(name)
            await asyncio.sleep(RETRY_S)


class Head:
    """The first container's part."""

    def __init__(self, size: int) -> None:
        self.token = secrets.token_hex(16)
        self.size = size
        self.complete = asyncio.Event()
        self.lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._workers: dict[int, StreamWriter] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        if size == 1:
            self.complete.set()

    async def caller(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection: a worker, an agent of our own mpirun, or a stranger, who is turned away."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            hello = await asyncio.wait_for(read(reader), HELLO_S) or {}
            rank = hello.get("rank")
            if not isinstance(rank, int) or not 0 < rank < self.size:
                return
            if hmac.compare_digest(str(hello.get("token", "")).encode(), self.token.encode()):
                await self._agent(rank, str(hello.get("command", "")), writer)
            elif rank not in self._workers and all(hello.get(key) == value for key, value in identity().items()):
                await self._worker(rank, reader, writer)
        except (asyncio.TimeoutError, OSError):  # noqa: UP041 - not the same before Python 3.11, which an image may have
            pass
        finally:
            await close(writer)

    async def _worker(self, rank: int, reader: StreamReader, writer: StreamWriter) -> None:
        self._workers[rank] = writer
        self._exits[rank] = asyncio.get_running_loop().create_future()
        if len(self._workers) == self.size - 1:
            self.complete.set()
        while (message := await read(reader)) is not None and isinstance(message.get("exited"), int):
            settle(self._exits[rank], message["exited"])
        settle(self._exits[rank], 1)
        settle(self.lost, rank)

    async def _agent(self, rank: int, command: str, writer: StreamWriter) -> None:
        send(self._workers[rank], {"run": command})
        await self._workers[rank].drain()
        send(writer, {"exited": await self._exits[rank]})

    def code_of(self, rank: int) -> int:
        """Return the exit code of a container that is gone, 1 if it said none."""
        return self._exits[rank].result() or 1

    async def end(self, code: int) -> None:
        """Let all workers end with this exit code."""
        for writer in self._workers.values():
            send(writer, {"end": code})
        if self._connections:
            await asyncio.wait(self._connections, timeout=END_S)


async def head(address: str, port: int, size: int, command: list[str]) -> int:
    stop, control = Stop(), Head(size)
    try:
        server = await listen(control.caller, address, port)
    except OSError as error:
        say(f"cannot listen on {address}:{port}: {error.strerror}")
        return PORT_TAKEN if error.errno == errno.EADDRINUSE else 1
    if await first(control.complete.wait(), stop.asked.wait()) == 1:
        say("stopped before all containers had connected: there is nothing to save")
        return STOPPED
    os.environ.update({TOKEN: control.token, HEAD: f"{address} {port}"})
    job = await started(*command)
    passing = asyncio.ensure_future(stop.pass_on())
    ended = asyncio.ensure_future(job.wait())
    await asyncio.wait([ended, control.lost], return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        code = shown(ended.result())
    else:
        say(f"the container of rank {control.lost.result()} is gone")
        # Asked to stop, it may still save; Dorm's grace time bounds that.
        await finish(job, None if stop.asked.is_set() else 0.0)
        # A separate exit code, because Dorm distinguishes causes by exit codes: a taken port is not a failure of the
        # app.
        code = STOPPED if stop.asked.is_set() else control.code_of(control.lost.result())
    passing.cancel()
    await control.end(code)
    server.close()
    return code


async def worker(address: str, port: int, rank: int, command: list[str]) -> int:
    stop = Stop()
    connecting = asyncio.ensure_future(connected(address, port))
    if await first(asyncio.shield(connecting), stop.asked.wait()) == 1:
        say("stopped before the first container answered: there is nothing to save")
        return STOPPED
    reader, writer = await connecting
    send(writer, {**identity(), "rank": rank})
    processes = [await started(*command)] if command else []
    failing = asyncio.ensure_future(failure(processes))
    # A container with its own command serves the head, which may need it to save.
    passing = None if command else asyncio.ensure_future(stop.pass_on())
    reports: set[asyncio.Future[None]] = set()
    while True:
        reading = asyncio.ensure_future(read(reader))
        await asyncio.wait([reading, failing], return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            code = failing.result()
            send(writer, {"exited": code})
            break
        message = reading.result()
        if message is None:
            say("the first container is gone")
            code = STOPPED if stop.asked.is_set() else 1
            break
        if "end" in message:
            code = int(message["end"])
            break
        daemon = await started("/bin/sh", "-c", str(message.get("run", "")))
        processes.append(daemon)
        reports.add(asyncio.ensure_future(report(daemon, writer)))
    for process in processes:
        await finish(process, 0.0 if command else END_S)
    for task in (failing, passing, reading, *reports):
        if task is not None:
            task.cancel()
    await close(writer)
    return code


async def failure(processes: list[Process]) -> int:
    """Return the exit code of a command that failed; never return without a command, or after a successful one."""
    code = shown(await processes[0].wait()) if processes else 0
    return code or await asyncio.get_running_loop().create_future()


async def report(daemon: Process, writer: StreamWriter) -> None:
    send(writer, {"exited": shown(await daemon.wait())})


async def agent(host: str, command: str) -> int:
    """Run the command in the container that the hostfile calls `host`."""
    rank = int(host.rpartition("-")[2])
    if rank == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    address, port = os.environ[HEAD].split()
    reader, writer = await connected(address, int(port))
    send(writer, {"token": os.environ[TOKEN], "rank": rank, "command": command})
    answer = await read(reader)
    return 1 if answer is None else int(answer.get("exited", 1))


def become(command: list[str]) -> None:
    """Become the app's command, if the container would have started it."""
    pid = os.getpid()
    with contextlib.suppress(FileNotFoundError), open(os.path.join(os.environ[FOLDER], COMMAND)) as file:
        command = json.load(file)
    with open(os.path.join(os.environ[FOLDER], f"{NOTE}.{pid}.{start_time_of(pid)}"), "w"):
        pass
    os.chdir(os.environ[DIRECTORY])
    os.environ.pop(TOKEN, None)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        sys.exit(127)


async def started(*command: str) -> Process:
    return await asyncio.create_subprocess_exec(*command, preexec_fn=os.setpgrp)


async def finish(process: Process, patience_s: float | None) -> None:
    """Wait for the end of a process and its group: by itself for `patience_s` (None: without a limit), then by SIGTERM, then
    by SIGKILL."""
    for patience, number in ((patience_s, signal.SIGTERM), (END_S, signal.SIGKILL)):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), patience)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    await process.wait()


def shown(code: int) -> int:
    """Return an exit code as a shell shows it."""
    return code if code >= 0 else 128 - code


async def listen(
    caller: Callable[[StreamReader, StreamWriter], Coroutine[Any, Any, None]], address: str, port: int
) -> asyncio.AbstractServer:
    try:
        return await asyncio.start_server(caller, address, port, limit=LINE)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return await asyncio.start_server(caller, None, port, limit=LINE)  # behind address translation


async def connected(address: str, port: int) -> tuple[StreamReader, StreamWriter]:
    """Connect as soon as the other side listens.  Dorm's own deadlines bound how long a start may take."""
    while True:
        try:
            return await asyncio.open_connection(address, port, limit=LINE)
        except OSError:
            await asyncio.sleep(RETRY_S)


async def first(*waits: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> int:
    """Return the number of the first one that has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    over = next(number for number, task in enumerate(tasks) if task.done())
    for task in tasks:
        task.cancel()
    return over


def main(words: list[str]) -> int:
    role, *rest = words
    if role == "rank":
        become(rest)
    if role == "agent":
        return asyncio.run(agent(rest[0], " ".join(rest[1:])))
    os.environ[FOLDER] = os.path.dirname(os.path.abspath(__file__))
    os.environ[DIRECTORY] = os.getcwd()
    if role == "head":
        return asyncio.run(head(rest[0], int(rest[1]), int(rest[2]), rest[3:]))
    return asyncio.run(worker(rest[0], int(rest[1]), int(rest[2]), rest[3:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
