"""One seed: a server, hosts with processes on them, and the truth about what happened.

    with World(7) as world:
        host = world.host("n1")
        host.start("client", main)
        world.run_for(60.0)

All random numbers follow from the seed, with a separate stream for each purpose, so leaving out a fault does not change the
others.  At the end, every task unwinds and every file is removed.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import functools
import hashlib
import itertools
import os
import random
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from unittest import mock

import msgspec
import nkeys

import agents.reporter
import dorm.master.sealing
import dorm.snapshots
from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.state import State
from dorm.policies.dorm.optimizer import OptimizerPolicy
from events.chain import SealKey
from events.log.stores import SNAPSHOT_EVERY
from events.quantities import SECOND
from events.subjects import kind_of
from tests.simulation.world.answers import remembered
from tests.simulation.world.connection import Connection
from tests.simulation.world.loop import OWNER, Loop, SimulationError
from tests.simulation.world.process import Host, Process
from tests.simulation.world.server import Server
from tests.simulation.world.told import logs_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.records import Appended, Record
    from tests.simulation.world.network import Link

START = 1_700_000_000 * SECOND
"""Wall time at the start, UTC nanoseconds."""
MOST_RECORDS = 5_000
"""The maximum number of records of a log. A history has about 200, and the longest seen about 1,100; masters that answer each
other without end write thousands in seconds."""
PROGRESS_POLL_S = 1.0
"""Reading each progress file five times a second would be most of a history's cost."""
IDENTITY_BYTES = 16
"""No other random text is so long."""
_MEMORY = Path("/dev/shm")
_PREFIX = "dorm-simulation-"
_folders = itertools.count()
_nature = contextvars.Context()
"""The context of nature, which belongs to no process."""


class Broken(AssertionError):
    """A promise was broken; the message begins with the seed."""


class Disturbed(Exception):
    """Another program interfered with the history, so it proves nothing."""


class Stored(NamedTuple):
    """An append that its process knows to be stored."""

    at: float
    process: str
    subject: str
    msg_id: str
    seq: int

    @property
    def event_id(self) -> str:
        """The event's id, without the suffix that `events.appending` adds if the id was taken."""
        return self.msg_id.partition("~")[0]


class World:
    """One history."""

    def __init__(self, seed: int, *, cluster: str = "sim", fold: bool = True) -> None:
        """Without `fold` the world does not fold the log itself, and checks no invariants."""
        self.seed = seed
        self.cluster = cluster
        self.loop = Loop()  # type: ignore[abstract]  # What else a loop can do (sockets, signals) nobody here may use.
        self.whole = State()
        """The fold of all that is durable."""
        self.processes: list[Process] = []
        """All that ever were."""
        self.links: list[Link] = []
        self.stored: list[Stored] = []
        self.failure: Broken | None = None
        self.key: SealKey | None = None
        """What masters seal the log with, where they do."""
        self.archives: Path | None = None
        """Where the log's past moves to, in histories with rotation."""
        self._trace: list[tuple[float, str, str, dict[str, Any]]] = []
        self._names: dict[str, int] = {}
        self._patches = contextlib.ExitStack()
        shelf = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
        _sweep(shelf)
        self.folder = shelf / f"{_PREFIX}{os.getpid()}-{next(_folders)}"
        self.server = Server(self)
        self.server.on_crash.append(self._server_crashed)
        self.server.on_up.append(self._server_up)
        if fold:
            self.server.on_record.append(self._fold)

    def __enter__(self) -> Self:
        drawn = self.chance("secrets")
        self._held = _made_and_locked(self.folder)
        enter = self._patches.enter_context
        identities = self.chance("identities")

        def token_hex(size: int = 32) -> str:
            return (identities if size == IDENTITY_BYTES else drawn).randbytes(size).hex()

        enter(mock.patch.object(secrets, "token_hex", token_hex))
        enter(mock.patch.object(agents.reporter, "_PROGRESS_POLL_S", PROGRESS_POLL_S))
        enter(mock.patch.object(OptimizerPolicy, "allocate", remembered))
        # Histories are short, so snapshots come after far fewer records than usual.
        every = self.chance("snapshots").choice([SNAPSHOT_EVERY, 30, 100])
        enter(mock.patch.object(dorm.snapshots, "SNAPSHOT_EVERY", every))
        enter(mock.patch.object(dorm.snapshots, "QUIET_EVERY", every // 2))
        sealing = self.chance("seals")
        enter(
            mock.patch.object(
                dorm.master.sealing, "MOST_RECORDS", sealing.choice([dorm.master.sealing.MOST_RECORDS, 20])
            )
        )
        if sealing.random() < 0.5:
            self.key = SealKey(nkeys.encode_seed(sealing.randbytes(32), nkeys.PREFIX_BYTE_CLUSTER))
        enter(logs_to(self))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._clear_away()
        finally:
            self._patches.close()
            removed = os.fstat(self._held).st_nlink == 0
            os.close(self._held)
            shutil.rmtree(self.folder, ignore_errors=True)
        if removed:
            raise Disturbed(
                f"{self.folder} was removed by another program while seed {self.seed} was played, so whatever was found is "
                "no finding; play it again"
            )

    def _clear_away(self) -> None:
        """Unwind every task, including those of dead processes, so that Python issues no warnings afterwards."""
        self.loop.deaf = True
        self.server.on_record.clear()
        for _ in range(5):
            self.loop.forget_timers()
            for process in self.processes:
                process.unbury()
            left = self.loop.unfinished()
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_to(self.loop.now + 60.0)
        if left := self.loop.unfinished():
            raise SimulationError(f"{len(left)} tasks can't be ended: {left[:3]}")
        self.loop.close()

    # --- chance and time ------------------------------------------------------------------------------------------------

    def chance(self, purpose: str) -> random.Random:
        """Return another random stream each time, even for the same purpose."""
        number = self._names[purpose] = self._names.get(purpose, 0) + 1
        return random.Random(f"{self.seed}/{purpose}/{number}")

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.loop.now

    def wall(self) -> int:
        """True time, UTC nanoseconds; hosts have their own clocks."""
        return START + int(self.loop.now * SECOND)

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        """Schedule an act of nature, which happens even if processes are dead or paused."""
        self.loop.call_at(when, call, *args, context=_nature)

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_at(self.loop.now + seconds, call, *args, context=_nature)

    # --- parts ----------------------------------------------------------------------------------------------------------

    def host(self, name: str, skew_s: float = 0.0) -> Host:
        return Host(self, name, skew_s)

    def connect(self, process: Process) -> Connection:
        return Connection(self, process)

    def _server_crashed(self) -> None:
        for link in list(self.links):
            link.broken("the server is gone")

    def _server_up(self) -> None:
        for link in list(self.links):
            link.reconnect_soon()

    # --- truth ----------------------------------------------------------------------------------------------------------

    def _fold(self, record: Record) -> None:
        evolve(self.whole, record)
        if record.seq > MOST_RECORDS:
            self.fail("there are more records than all that was asked for and all faults explain")
        if broken := violations(self.whole):
            self.fail("; ".join(broken))

    def note_stored(self, process: Process, subject: str, msg_id: str, stored: Appended) -> None:
        """Note that `process` knows its append to be stored."""
        self.stored.append(Stored(self.loop.now, process.name, subject, msg_id, stored.seq))

    @property
    def acknowledged(self) -> list[Stored]:
        """Submissions that a client knows to be stored."""
        return [stored for stored in self.stored if kind_of(stored.subject) == "AppSubmitted"]

    def fail(self, text: str) -> None:
        """Report a broken promise.  Catching the exception changes nothing: the run ends here."""
        if self.failure is None:
            self.failure = Broken(f"seed {self.seed}, at {self.now:.3f} s, record {self.server.durable}: {text}")
            self.loop.stop()
        raise self.failure

    # --- running --------------------------------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        """Raises Broken."""
        self.loop.run_to(self.loop.now + seconds)
        self._check()

    def run_until(self, reached: Callable[[], bool], *, within: float, every: float = 0.25) -> bool:
        """Run until a condition holds, checked at an interval; return whether it held in time.  Raises Broken."""
        until = self.loop.now + within
        while not reached():
            if self.loop.now >= until:
                return False
            self.run_for(min(every, until - self.loop.now))
        return True

    def _check(self) -> None:
        self.loop.unfinished()
        if self.failure is None and self.loop.faults:
            self.failure = Broken(f"seed {self.seed}, at {self.now:.3f} s: {'; '.join(self.loop.faults)}")
        if self.failure is not None:
            raise self.failure

    # --- story ----------------------------------------------------------------------------------------------------------

    def trace(self, what: str, **values: Any) -> None:
        """Add a line to the story, in the name of the running process."""
        owner = OWNER.get()
        self._trace.append((self.loop.now, owner.name if isinstance(owner, Process) else "", what, values))

    def story(self, last: int = 0) -> list[str]:
        """Return all lines, or the last ones; paths are relative to the folder of this history."""
        lines = (
            f"{at:9.3f}  {who:10}  {what}  {' '.join(f'{name}={value}' for name, value in values.items())}".rstrip()
            for at, who, what, values in self._trace[-last:]
        )
        return [line.replace(str(self.folder), "") for line in lines]

    def digest(self) -> str:
        """Return a digest of all records and lines of the story: equal for equal seeds, in any Python process."""
        made = hashlib.blake2b(digest_size=16)
        made.update(msgspec.msgpack.encode(self.server.records))
        made.update("\n".join(self.story()).encode())
        made.update(f"{self.loop.steps} {self.loop.now!r}".encode())
        return made.hexdigest()


def _made_and_locked(folder: Path) -> int:
    """Return an open, locked file of a new folder; the lock keeps `_sweep` of other processes away."""
    while True:
        folder.mkdir(exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        if os.fstat(held).st_nlink > 0:
            return held
        os.close(held)  # It was swept before it was locked.


@functools.cache
def _sweep(shelf: Path) -> None:
    """Remove folders of processes that were killed in the middle of a history; they are in memory, and would stay there.

    A world locks its folder.  The id of its process would not suffice: a process in a container may share the memory but not
    the ids."""
    for left in shelf.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Another process sweeps it too, or it is in use.
            held = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)
