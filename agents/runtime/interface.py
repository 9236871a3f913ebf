"""The interface between an agent and whatever runs containers, and the errors a runtime may raise.

    RuntimeFault
    ├── Unavailable   the engine does not answer: the state is unknown, neither failed nor free; try again later
    ├── Refused       this container can never start here as it is specified (`cause` says in which class of reasons)
    ├── Conflict      something else holds the name or the room; a human or the next reconcile has to look
    └── Displaced     the node's folder was removed or replaced under the agent: it must end, since it sees another's

Two implementations pass one conformance suite (`tests/agents/runtime/conformance.py`): `agents.runtime.docker.runtime` and
`agents.runtime.process.runtime`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

PROGRESS_FILE: Final = "progress.jsonl"
"""What DORM_PROGRESS names, in a container's private directory."""
TIMED_OUT: Final = 124
"""The exit code that `Runtime.run` gives for a command it had to kill, as coreutils' timeout does."""
NOT_FOUND: Final = 127
"""The exit code that `Runtime.run` gives for a command that does not exist, as a shell does."""

RefusalCause = Literal["image", "command", "spec", "device"]


class RuntimeFault(Exception):
    """Root of what a runtime raises."""


class Unavailable(RuntimeFault):
    """The engine did not answer, so nothing is known about its containers."""


class Refused(RuntimeFault):
    """The container can never start here as specified."""

    def __init__(self, cause: RefusalCause, message: str) -> None:
        super().__init__(message)
        self.cause: RefusalCause = cause


class Conflict(RuntimeFault):
    """Another container holds what this one needs."""


class Displaced(RuntimeFault):
    """The node's folder is no longer the one that this agent opened, so what is missing there may still run."""


class Key(NamedTuple):
    """Names one container for good: generations are never used twice."""

    app: str
    generation: int
    slot: int


class ContainerSpec(msgspec.Struct, frozen=True):
    """All that is needed to make one container.  A narrow, typed form: nothing of an app's wish passes to the engine raw."""

    key: Key
    image: str
    """Ignored by the process runtime."""
    command: tuple[str, ...]
    env: dict[str, str]
    """Complete, the contract's DORM_* variables included (the runtime sets only DORM_PROGRESS itself)."""
    resources: dict[str, int]
    """`cpu` in milli-cores, `memory` in bytes, `gpu` in whole devices; other names limit nothing."""
    checkpoint_dir: str = ""
    """Host path shared by all nodes, already made; seen inside the container as `checkpoint_mount`."""
    grace_s: float = 10.0
    """Time between SIGTERM and SIGKILL."""
    devices: tuple[str, ...] = ()
    """GPU ids, chosen by the agent."""


def spec_hash(spec: ContainerSpec) -> str:
    """Names what a spec asks for: equal specs give equal hashes in every process, whatever the order of their maps.

    BLAKE2b (RFC 7693) of 128 bits over the spec's MessagePack with sorted keys, in hex.
    """
    return hashlib.blake2b(msgspec.msgpack.encode(spec, order="deterministic"), digest_size=16).hexdigest()


_APP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def key_name(key: Key) -> str:
    """`app-generation-slot`: a name fit for a folder and for an engine, one-to-one with the key.

    Raises `Refused` ("spec") where the app's name could leave the folder or is no name for an engine.
    """
    if not _APP.fullmatch(key.app) or key.generation < 0 or key.slot < 0:
        raise Refused("spec", f"no container can be named after {key!r}")
    return f"{key.app}-{key.generation}-{key.slot}"


def check_spec(spec: ContainerSpec) -> None:
    """Refuse what no engine could pass to a program.  Raises `Refused` ("spec")."""
    key_name(spec.key)
    if not spec.command or not spec.command[0]:
        raise Refused("spec", "the command is empty")
    for word in (*spec.command, *spec.env.values(), spec.checkpoint_dir):
        if "\0" in word:
            raise Refused("spec", f"a NUL character cannot be passed to a program: {word[:80]!r}")
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            raise Refused("spec", f"no environment variable can be called {name!r}")
    for name, amount in spec.resources.items():
        if amount < 0:
            raise Refused("spec", f"a demand for {amount} of {name} makes no sense")


State = Literal["created", "running", "exited"]


class Seen(msgspec.Struct, frozen=True):
    """One container as the engine lists it.  Times are UTC nanoseconds, 0 while unknown."""

    key: Key
    state: State
    spec_hash: str
    started_at: int = 0
    exited_at: int = 0
    exit_code: int | None = None
    """None also for an exited container whose code nobody recorded."""
    out_of_memory: bool = False
    error: str = ""
    """What the engine said when it could not start it."""
    lease_ended: bool = False
    """The runtime itself killed it, because the node's lease was over: no failure of the app's."""
    interrupted: bool = False
    """Something other than the program itself ended it, or may have: somebody with the engine's own tools, the engine when it
    was restarted, the machine.  Its code then says neither that it is done nor that it failed."""


class Use(msgspec.Struct, frozen=True):
    """What one container used."""

    cpu_s: float
    """CPU seconds since its start."""
    memory: int
    """Bytes resident now."""


class Runtime(Protocol):
    """Every method may raise `Unavailable`.  All are safe to cancel and to call again; `ensure` and `stop` converge.

    One runtime object at a time may have a node's `root` folder open; a second one gets `Conflict` from `open`.
    """

    name: str
    limits: bool
    """Whether it holds containers to their resources."""
    checkpoint_mount: str
    """Where a container sees its checkpoint directory ('' where it sees the host's own path)."""

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Let go of the engine; containers run on."""
        ...

    async def list(self) -> list[Seen]:
        """All containers of this node that Dorm made, ended ones included, sorted by key."""
        ...

    async def ensure(self, spec: ContainerSpec) -> Seen:
        """Make and start it unless it already ran: at most one container ever starts for a key, whoever crashed
        between create and start.  Limits are checked after creation.  The lease is checked right before the start: this
        process, the machine or a pull of the image may have taken longer than what was left of it, and by then the
        container may have a successor elsewhere.  Raises `Refused` (and nothing is left of the container), `Conflict`, or
        `Unavailable` where the lease is over.  Cancelled, it lets a start that is under way come to its end."""
        ...

    async def stop(self, key: Key, grace_s: float) -> bool:
        """SIGTERM, after `grace_s` SIGKILL; returns when it has exited, and whether it had to be killed.  An unknown or
        ended key is no error, and was not killed."""
        ...

    async def extend_lease(self, seconds: float) -> None:
        """What runs here may run on for so long from now, agent or not.  When that is over the runtime itself kills
        everything, also what is only being started, and goes on doing so until the lease is extended; with the agent dead
        or cut off, and whatever becomes of wall clocks.  Before the first call there is no limit.  A lower figure than
        what is left shortens it.  Raises `Unavailable` where it cannot be kept: then it was not extended."""
        ...

    async def lease_left(self) -> float | None:
        """Seconds of it, 0 or less when it is over; None where it was never extended.  It survives restarts of the agent;
        one from before the machine's last boot is over."""
        ...

    async def root_id(self) -> str:
        """One word for the folder in which it keeps what it knows: another one after that folder was lost, and with it the
        knowledge of what may still run.  Raises `Conflict`, `OSError`."""
        ...

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        """Run a command inside (the app's checkpoint command); gives its exit code, 124 on timeout, 127 where there is
        no such command.  KeyError where no such container runs."""
        ...

    async def remove(self, key: Key) -> None:
        """Delete an ended (or never started) container and its private directory, logs included.  Unknown keys are no
        error; `Conflict` where it runs."""
        ...

    def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        """Chunks of stdout and stderr; with `follow` until the container has exited.  KeyError where there is none."""
        ...

    async def use(self, key: Key) -> Use | None:
        """None where it is not running."""
        ...

    def run_dir(self, key: Key) -> Path:
        """The container's private directory on the host; `progress.jsonl` in it is what DORM_PROGRESS names inside.

        The app may write anything there, links included: open files in it with O_NOFOLLOW."""
        ...

    def hints(self) -> AsyncGenerator[None, None]:
        """Yields whenever something may have changed, and once after each (re)connection.  Only a hint: `list` is the
        truth.  Never raises; ends when the runtime is closed."""
        ...
