"""The interface between an agent and the engine that runs containers, and the errors that a runtime may raise.

    RuntimeFault
    ├── Unavailable   the engine does not answer: the state is unknown, neither failed nor free; try again later
    ├── Refused       this container can never start here as specified (`cause` classifies the reason)
    ├── Conflict      another container holds the name or the room; a human or the next reconcile has to look
    └── Displaced     the node's folder was removed or replaced under the agent: it must end, since it sees another's

Two implementations pass one conformance suite (`tests/agents/runtime/conformance.py`): `agents.runtime.docker.runtime` and
`agents.runtime.process.runtime`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from agents.runtime.stopping import DEFAULT
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from agents.runtime.execution import Command, Execution
    from agents.runtime.listeners import Listener
    from agents.runtime.workdir.cache import BlobCache
    from events.kinds import Doing
    from events.requests import LogPiece

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
"""Where a container finds its environment, if it sees that at a path of its own."""


class Mount(msgspec.Struct, frozen=True):
    """A folder of the node that a container sees at another path."""

    name: str
    """Of the volume."""
    source: str
    """An existing folder of the node."""
    target: str
    """Its path in a container.  Plain processes find it below their private directory instead (`Runtime.mounts`)."""
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
    """How it is asked to stop, in the format of `agents.runtime.stopping.FILE`.  It follows from the app as well."""


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
    """Where a container sees its checkpoint directory ('' if it sees the host's own path)."""
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
