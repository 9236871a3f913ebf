"""The interface between an agent and the engine that runs containers, and the errors that a runtime may raise.

    RuntimeFault
    ├── Unavailable   the engine does not answer: the state is unknown, neither failed nor free; try again later
    ├── Refused       this container can never start here as specified (`cause` classifies the reason)
    ├── Conflict      another container holds the name or the room; a human or the next reconcile has to look
    └── Displaced     the node's folder was removed or replaced under the agent: it must end, since it sees another's

Two implementations pass one conformance suite (`tests/agents/runtime/conformance.py`): `agents.runtime.docker.runtime`
and `agents.runtime.process.runtime`.

*A command that a person runs in a container* (`Execution`) runs next to the container's own program.  Its processes
have the container's user, environment, folder and control group, and they end with the session: when the container
ends, when the session is closed, and when the agent dies.  For the last, each session has a keeper, a process that
outlives the agent and kills the remaining processes (`agents.runtime.process.keeper`, `agents.runtime.docker.keeper`).

*Listeners* on a port are found by the kernel's own tables (proc(5), /proc/PID/net/tcp).  Containers share their node's
network, so a port says nothing about whose it is: what listens there may be another tenant's, or the node's own.  So
connections are forwarded only to a socket that a process of the container holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from agents.runtime.stopping import DEFAULT
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping

    from agents.runtime.workdir import BlobCache
    from events.kinds import Doing
    from events.requests import LogPiece


# --- commands of people -----------------------------------------------------------------------------------------------

MARK: Final = "DORM_SESSION"
"""The variable of its environment that shows which session a process belongs to."""
CHUNK: Final = 32 * 1024
"""Bytes of output that are read at once."""
_WAITING: Final = 2
"""Pieces of output that wait for the reader; then the program waits."""


class Terminal(NamedTuple):
    """A terminal's size in characters, and its kind (TERM)."""

    columns: int
    rows: int
    kind: str


class Command(msgspec.Struct, frozen=True):
    """What to run."""

    words: tuple[str, ...]
    session: str
    """A word that no other session has."""
    terminal: Terminal | None = None
    """None for a command with plain pipes, whose standard output and error are apart."""


class End(NamedTuple):
    """How a command ended."""

    exit_code: int
    """Exit code as a shell has it: 128 and the signal's number after a signal."""
    with_container: bool
    """Whether it was killed because its container ended."""
    refused: str = ""
    """Why it could not be executed, if an engine finds that out only after its start."""


class Execution(Protocol):
    """A command that runs.  Methods may be called in any order and after its end; `close` has to be."""

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece of output, with 1 for standard output or a terminal and 2 for standard error; None
        once all has been read.  A program whose output is not read has to wait."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its standard input; return once the system has taken it.  A program that reads no more takes nothing,
        which is not an error."""
        ...

    async def end_input(self) -> None:
        """Close its standard input; of a terminal, send what Ctrl-D does."""
        ...

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal, if it has one."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    async def ended(self) -> End:
        """Wait for its end, once all output was read."""
        ...

    async def close(self) -> None:
        """Kill its remaining processes, and return when they are gone, or certainly will be soon."""
        ...


class Stream:
    """Output of several sources in the order in which it comes, in a bounded queue."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_WAITING)
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    def add(self, number: int, read: Callable[[], Awaitable[bytes]]) -> None:
        """Read from a source, whose end is an empty piece or an OSError."""
        self._open += 1
        task = asyncio.create_task(self._pump(number, read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece, None at the end of all sources."""
        if self._over:
            return None
        piece = await self._pieces.get()
        self._over = piece is None
        return piece

    async def close(self) -> None:
        """Read no more, and end a `read` that waits."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)

    async def _pump(self, number: int, read: Callable[[], Awaitable[bytes]]) -> None:
        with contextlib.suppress(OSError):  # A terminal whose program has ended gives EIO.
            while data := await read():
                await self._pieces.put((number, data))
        self._open -= 1
        if not self._open:
            await self._pieces.put(None)


# --- who listens on a port --------------------------------------------------------------------------------------------

_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """A socket that listens: the address to connect to, and its number on this machine."""

    address: str
    inode: int


def find(pids: Iterable[int], port: int, proc: Path = Path("/proc")) -> Listener | None:
    """Return a socket on which one of these processes listens at this port, None if there is none.  Blocks, briefly."""
    listening: dict[int, str] | None = None
    for pid in pids:
        if listening is None:
            with contextlib.suppress(OSError):
                listening = dict(_listening(proc / str(pid) / "net", port))
        if listening is not None and not listening:
            return None
        for inode in _sockets(proc / str(pid) / "fd"):
            if listening is not None and inode in listening:
                return Listener(listening[inode], inode)
    return None


def in_container(container_id: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a Docker container, by the names of their control groups."""
    processes = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if container_id in (proc / entry / "cgroup").read_text():
                    processes.append(int(entry))
    return processes


def _listening(folder: Path, port: int) -> Iterator[tuple[int, str]]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # A kernel without IPv6 has no such table.
            for line in (folder / table).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port:
                    yield int(fields[9]), _reachable(local)


def _reachable(hexadecimal: str) -> str:
    """Return the address at which a listener is reached from its own machine; the kernel writes 32-bit words in the
    machine's byte order, and a socket that listens everywhere is reached on loopback."""
    raw = bytes.fromhex(hexadecimal)
    groups = (raw[place : place + 4][::-1] for place in range(0, len(raw), 4))
    address = ipaddress.ip_address(b"".join(groups))
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _sockets(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if match := _SOCKET.fullmatch(os.readlink(folder / name)):
                    yield int(match[1])


# --- the runtime ------------------------------------------------------------------------------------------------------

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
PROGRESS_FILE: Final = "progress.jsonl"
"""The file that DORM_PROGRESS names, in a container's private directory."""
MEMBERS_FILE: Final = "members.json"
"""The file that DORM_MEMBERS names, beside it (`agents.reconcile`)."""
BATCH_FILE: Final = "batch"
"""The file that DORM_BATCH names, beside it."""
TIMED_OUT: Final = 124
"""The exit code that `Runtime.run` returns for a command it had to kill, as coreutils' timeout does."""
NOT_FOUND: Final = 127
"""The exit code that `Runtime.run` returns for a command that does not exist, as a shell does."""

RefusalCause = Literal["image", "command", "spec", "device"]


class RuntimeFault(DormError):
    """Root of the errors that a runtime raises."""

    code = "runtime.failed"


class Unavailable(RuntimeFault):
    """The engine did not answer, so the state of its containers is unknown."""

    code = "runtime.unavailable"

    def __init__(self, message: str = "", *, code: str = "", doing: Doing | None = None, said: str = "") -> None:
        """`doing`: what could not be done for a container, if that is known; `said`: what the engine or the system said,
        without the container's name."""
        super().__init__(message, code=code)
        self.doing = doing
        self.said = said or message


class Refused(RuntimeFault):
    """The container can never start here as specified.  The code follows from the cause unless the `raise` knows more."""

    code = "container.refused"

    def __init__(self, cause: RefusalCause, message: str, *, code: str = "") -> None:
        super().__init__(message, code=code or f"container.{cause}.refused")
        self.cause: RefusalCause = cause


class Conflict(RuntimeFault):
    """Another container holds a resource that this one needs."""

    code = "runtime.conflict"


class WrongUser(RuntimeFault, ValueError):
    """The user that the containers should run as can't be used; the message says which can."""

    code = "config.user.malformed"


class Displaced(RuntimeFault):
    """The node's folder is no longer the one that this agent opened, so containers missing from it may still run."""

    code = "runtime.displaced"


class Key(NamedTuple):
    """Names one container permanently: generations are never reused."""

    app: str
    generation: int
    slot: int


class _WithoutFiles(msgspec.Struct, frozen=True):
    """What every container has, in the order in which its hash reads it."""

    key: Key
    image: str
    """Ignored by the process runtime."""
    command: tuple[str, ...]
    env: dict[str, str]
    """Complete, including the contract's DORM_* variables (the runtime sets only DORM_PROGRESS itself)."""
    resources: dict[str, int]
    """`cpu` in milli-cores, `memory` in bytes, `gpu` in whole devices; other names limit nothing."""
    checkpoint_dir: str = ""
    """Existing host path shared by all nodes; visible inside the container as `checkpoint_mount`."""
    grace_s: float = 10.0
    """Time between SIGTERM and SIGKILL."""
    devices: tuple[str, ...] = ()
    """GPU ids, chosen by the agent."""


class _Hashed(_WithoutFiles, frozen=True):
    files: dict[str, str] = {}
    """Text of files to write into the container's private directory before it starts, by name."""


class _WithWorkdir(_Hashed, frozen=True):
    workdir: str = ""
    """Hash of the shipped folder in whose copy it starts, which has to be among the runtime's `blobs`; "" for none."""


ENVIRONMENT_MOUNT: Final = "/dorm/environment"
"""Path of a container's environment, if it sees that at a path of its own."""


class Mount(msgspec.Struct, frozen=True):
    """A folder of the node that a container sees at another path."""

    name: str
    """Name of the volume."""
    source: str
    """An existing folder of the node."""
    target: str
    """Path in a container.  Plain processes find it below their private directory instead (`Runtime.mounts`)."""
    read_only: bool


class _Mounting(_WithWorkdir, frozen=True):
    mounts: tuple[Mount, ...] = ()
    """Volumes, by name."""


class ContainerSpec(_Mounting, frozen=True):
    """All that is needed to create one container.  Narrow and typed: nothing from an app's spec reaches the engine raw."""

    tenant: str = ""
    """The tenant of the app; "" for none. It follows from the app, so it is not part of the hash."""
    outputs_dir: str = ""
    """Existing host path shared by all nodes, of the app's outputs; visible inside the container as `outputs_mount`.  It
    follows from the app as well, and `DORM_OUTPUTS` is part of the hash."""
    stop: str = DEFAULT
    """Request by which it is asked to stop, in the format of `agents.runtime.stopping.FILE`.  It follows from the app as
    well."""


def spec_hash(spec: ContainerSpec) -> str:
    """Return a hash of a spec: equal specs give equal hashes in every process, whatever the order of their maps.

    BLAKE2b (RFC 7693) of 128 bits over the spec's MessagePack with sorted keys, in hex.  Containers that releases without
    files, shipped folders or mounts started carry the hash of a spec without these fields.
    """
    workdir = _WithWorkdir if spec.workdir else _Hashed
    parts = _Mounting if spec.mounts else workdir if spec.workdir or spec.files else _WithoutFiles
    hashed = parts(*(getattr(spec, name) for name in parts.__struct_fields__))
    return hashlib.blake2b(msgspec.msgpack.encode(hashed, order="deterministic"), digest_size=16).hexdigest()


_APP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def key_name(key: Key) -> str:
    """Return `app-generation-slot`: a name fit for a folder and for an engine, one-to-one with the key.

    Raises `Refused` ("spec") if the app's name could leave the folder or is not a name for an engine.
    """
    if not _APP.fullmatch(key.app) or key.generation < 0 or key.slot < 0:
        raise Refused("spec", f"no container can be named after {key!r}", code="container.name.malformed")
    return f"{key.app}-{key.generation}-{key.slot}"


def check_spec(spec: ContainerSpec) -> None:
    """Refuse a spec that no engine could pass to a program.  Raises `Refused` ("spec")."""
    key_name(spec.key)
    if not spec.command or not spec.command[0]:
        raise Refused("spec", "the command is empty", code="container.command.missing")
    for word in (*spec.command, *spec.env.values(), spec.checkpoint_dir, spec.outputs_dir):
        if "\0" in word:
            raise Refused(
                "spec", f"a NUL character cannot be passed to a program: {word[:80]!r}", code="container.text.malformed"
            )
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            raise Refused("spec", f"no environment variable can be called {name!r}", code="container.env.malformed")
    for name in spec.files:
        if not _FILE.fullmatch(name) or name == PROGRESS_FILE:
            raise Refused("spec", f"no file of a container can be called {name!r}", code="container.file.malformed")
    for name, amount in spec.resources.items():
        if amount < 0:
            raise Refused(
                "spec", f"a demand for {amount} of {name} makes no sense", code="container.resources.negative"
            )


State = Literal["created", "running", "exited"]


class Seen(msgspec.Struct, frozen=True):
    """One container as the engine lists it.  Times are UTC nanoseconds, 0 while unknown."""

    key: Key
    state: State
    spec_hash: str
    started_at: int = 0
    exited_at: int = 0
    exit_code: int | None = None
    """None also for an exited container whose code was not recorded."""
    out_of_memory: bool = False
    error: str = ""
    """The engine's message when it could not start it."""
    lease_ended: bool = False
    """The runtime killed it because the node's lease had expired: not the app's failure."""
    interrupted: bool = False
    """Something other than the program ended it, or may have: a person with the engine's tools, a restart of the engine, the
    machine.  Its code then means neither that it is done nor that it failed."""


class Use(msgspec.Struct, frozen=True):
    """Resources that one container used."""

    cpu_s: float
    """CPU seconds since its start."""
    memory: int
    """Bytes resident now."""


class Wanted(msgspec.Struct, frozen=True):
    """Which part of a container's output is wanted; the fields are those of `events.requests.LogQuestion`."""

    follow: bool = False
    tail: int | None = None
    since: int | None = None
    after: str = ""


def no_mark(text: str) -> RuntimeFault:
    """Return the error of a mark that this runtime has not written."""
    return RuntimeFault(
        f"{text[:60]!r} is not a position in this output; ask without `after`", code="agent.question.malformed"
    )


class Runtime(Protocol):
    """Every method may raise `Unavailable`.  All are safe to cancel and to call again; `ensure` and `stop` converge.

    Only one runtime object at a time may have a node's `root` folder open; `open` of a second one raises `Conflict`.
    """

    name: str
    limits: bool
    """Whether it limits containers to their resources."""
    checkpoint_mount: str
    """Path at which a container sees its checkpoint directory ('' if it sees the host's own path)."""
    outputs_mount: str
    """The same of its outputs."""

    @property
    def blobs(self) -> BlobCache:
        """The parts of shipped folders that this node keeps, from which `ensure` and `prepare` lay out a working directory."""
        ...

    mounts: bool
    """Whether a container sees each mount at its target; otherwise at `volumes/NAME` in its private directory."""

    @property
    def serves(self) -> str:
        """The only tenant whose apps it runs, as far as it knows; "" for all, and for the first that comes."""
        ...

    @property
    def engine_folder(self) -> Path | None:
        """The folder of this machine in which the engine keeps its images and containers, None if it has none here."""
        ...

    def owner_of(self, tenant: str) -> tuple[int, int] | None:
        """Return (uid, gid) of a tenant's containers, None for the agent's own user."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Detach from the engine; containers keep running."""
        ...

    async def list(self) -> list[Seen]:
        """Return all containers that Dorm created on this node, ended ones included, sorted by key."""
        ...

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        """Create and start it unless it already ran, with `files` (by name) in its private directory: at most one container
        ever starts for a key, even after a crash between create and start.  Limits are checked after creation.  The lease is
        checked right before the start: this process, the machine or a pull of the image may have taken longer than the lease
        had left, and by then the container may have a successor elsewhere.  Raises `Refused` (and nothing is left of the
        container), `Conflict`, or `Unavailable` if the lease has expired.  On cancellation, a start under way still
        completes."""
        ...

    async def prepare(self, spec: ContainerSpec) -> None:
        """Pull its image if it is missing, and create it without starting it, so that a later `ensure` of the same spec has
        less to do.  It uses neither CPU nor memory until then.  Raises `Refused` (and nothing is left of the container),
        `Conflict`, or `Unavailable` while a long pull is under way or the disk is full."""
        ...

    async def stop(self, key: Key, grace_s: float) -> bool:
        """Ask it to stop as `agents.runtime.stopping` says, and after `grace_s` kill what is left; return once its last
        process has ended, and whether any had to be killed.  An unknown or ended key is not an error, and was not killed."""
        ...

    async def extend_lease(self, seconds: float) -> None:
        """Let containers run for `seconds` from now, agent or not.  When the lease expires the runtime itself kills
        everything, including containers just being started, and keeps doing so until the lease is extended; even if the agent
        is dead or cut off, and however wall clocks change.  Before the first call there is no limit.  A figure lower than the
        time left shortens the lease.  Raises `Unavailable` if it can't be kept: then it was not extended."""
        ...

    async def lease_left(self) -> float | None:
        """Return the seconds left, 0 or less if it has expired; None if it was never extended.  It survives restarts of the
        agent; a lease from before the machine's last boot has expired."""
        ...

    async def root_id(self) -> str:
        """Return one word that identifies the folder with the runtime's records: it changes if that folder was lost,
        and with it the knowledge of containers that may still run.  Raises `Conflict`, `OSError`."""
        ...

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        """Run a command inside (the app's checkpoint command) and return its exit code, 124 on timeout, 127 if there is no
        such command.  KeyError if no such container runs."""
        ...

    async def variables(self, key: Key) -> dict[str, str]:
        """Return the environment variables that its program was started with, in Docker with those of its image.
        KeyError if no such container runs."""
        ...

    async def runs(self, key: Key) -> bool:
        """Return whether it runs, if the engine can tell at once; False for an unknown key."""
        ...

    async def execute(self, key: Key, command: Command) -> Execution:
        """Run a command inside for a person, as the container's user, in its folder and with its environment; it ends with the
        container, and with this process.  KeyError if no such container runs; `Refused` ("command") if there is no such
        command."""
        ...

    async def listener(self, key: Key, port: int) -> Listener | None:
        """Return the socket on which a process of the container listens at this port, None if none does.  KeyError if no such
        container runs."""
        ...

    async def remove(self, key: Key) -> None:
        """Delete an ended (or never started) container and its private directory, logs included.  Unknown keys are not
        an error; `Conflict` if it runs."""
        ...

    def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        """Yield chunks of stdout and stderr; with `follow` until the container has exited.  KeyError if there is none."""
        ...

    def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        """Yield the same with times.  KeyError if there is no such container; `RuntimeFault` for an invalid mark."""
        ...

    async def use(self, key: Key) -> Use | None:
        """Return its use, None if it is not running."""
        ...

    def run_dir(self, key: Key) -> Path:
        """Return the container's private directory on the host; inside, DORM_PROGRESS names `progress.jsonl` in it.

        The app may write anything there, links included: open files in it with O_NOFOLLOW."""
        ...

    def run_mount(self, key: Key) -> str:
        """Return the path of that directory as the container sees it."""
        ...

    async def put(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in that directory in one step.  KeyError if there is no such container; `Unavailable` if the disk
        refuses."""
        ...

    def hints(self) -> AsyncGenerator[None, None]:
        """Yield whenever something may have changed, and once after each (re)connection.  Only a hint: `list` is
        authoritative.  Never raises; ends when the runtime is closed."""
        ...
