"""Whether new containers can start and work on this node, as its agent finds without starting any.

    data_…          the file system of the agent's own folder, with the containers' folders and output
    engine_…        that of the Docker engine's images and containers, if the engine is on this machine
    checkpoints_…   that of the folder of checkpoints
        …_bytes         hardly a byte is free
        …_inodes        hardly a file more can be made
        …_read_only     nothing can be written
        …_silent        it does not answer
    processes       hardly a process more can be started
    engine_silent   the engine does not list its containers
    health_program  the operator's program says so (`HealthProgram`)

While there is such a reason, the node takes nothing new; what runs there is left alone.  The reasons are on the log
(`NodeOffers.unfit`), so they must not change often.  A file system is out of room below a bound, has room again above
twice that bound, and a reason stays for at least `LEAST_S`; the words of a reason change every `WORDS_S` at most.

The bounds are for what certainly fails, not for what is scarce: below 32 MiB or a fiftieth of a small file system, not
even a container's folder is certain.  `dorm doctor` warns long before, and an operator who wants more uses a health
program.

*The operator's health program* says whether the operator finds the node fit for new containers.

    exit code 0      it is
    anything else    it takes nothing new, and the first line of the program's output says why

The agent runs the program when it starts, every `every_s` seconds, and when the node joins again after it was cut off:
until the first answer, the node takes nothing new.  Containers that run are left alone whatever the program says.

The program is bounded in all respects.  It has `timeout_s` seconds and may write `MOST_OUTPUT` bytes; it runs in a
session of its own, and when it has ended, or must end, its whole process group is killed, with children that left the
group as long as their parents live.  It sees only a few variables (`environment`), since the agent's own may hold
secrets, has no standard input, and starts in `/`.  The agent's loop never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
import structlog

from agents.config import HEALTH_EVERY_S, HEALTH_TIMEOUT_S
from events.kinds import LONGEST_UNFIT, MOST_UNFIT, Unfit
from events.limits import clipped
from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping


# --- the health program -----------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
MOST_OUTPUT = 64 * 1024
"""Bytes; a program that writes more is killed, and counts as failed."""
LONGEST_LINE = 200
"""Characters to which its line is cut."""
_REST_S = 0.5
"""Seconds within which the output is read that the program left in the pipe when it ended."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Verdict(NamedTuple):
    """What the program said last."""

    fit: bool
    why: str = ""
    """Its line, or how it ended without one; "" if the node is fit."""


class HealthProgram:
    """Runs one program again and again."""

    def __init__(
        self,
        path: Path,
        *,
        every_s: float = HEALTH_EVERY_S,
        timeout_s: float = HEALTH_TIMEOUT_S,
        variables: dict[str, str] | None = None,
    ) -> None:
        """`variables`: what the program sees beside those of `environment`."""
        self.verdict: Verdict | None = None
        """None until it has answered since the node joined."""
        self._path = path
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._environment = environment(variables or {})
        self._answered = asyncio.Event()
        self._due = asyncio.Event()

    async def run(self, changed: Callable[[], None]) -> None:
        """Run the program until cancelled.  `changed` is called when the verdict has changed."""
        while True:
            self._due.clear()
            verdict = await self._ask()
            if self._due.is_set():
                continue  # The node joins again: only an answer from now on counts.
            differs = verdict != self.verdict
            self.verdict = verdict
            self._answered.set()
            if differs:
                changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._due.wait()

    async def again(self, patience_s: float) -> None:
        """Forget the verdict, have the program run now, and wait a moment for its answer."""
        self.verdict = None
        self._answered.clear()
        self._due.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._answered.wait()

    async def _ask(self) -> Verdict:
        """Run it once."""
        output = _Output()
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.writing,
                stderr=output.writing,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            output.close()
            return Verdict(False, f"{self._path} can't be started: {error.strerror or type(error).__name__}")
        try:
            output.read()
            exited, flooded = asyncio.create_task(process.wait()), asyncio.create_task(output.flooded.wait())
            try:
                await asyncio.wait([exited, flooded], timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
                in_time = exited.done()
            finally:
                flooded.cancel()
                exited.cancel()
            if in_time:
                _kill_group(process.pid)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REST_S):
                        await output.ended.wait()
                return _verdict(process.returncode, output.line())
            why = "it writes too much" if output.flooded.is_set() else f"it did not end within {self._timeout_s:g} s"
            line = output.line()
            return Verdict(False, f"{why} (its output: {line})" if line else why)
        finally:
            await _end(process)
            output.close()


class _Output:
    """The pipe that the program writes to, read as it comes."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.ended = asyncio.Event()
        self.flooded = asyncio.Event()
        self._read = bytearray()
        self._loop = asyncio.get_running_loop()

    def read(self) -> None:
        """Begin to read; the program has the other end now."""
        os.close(self.writing)
        self.writing = -1
        self._loop.add_reader(self.reading, self._more)

    def _more(self) -> None:
        try:
            piece = os.read(self.reading, MOST_OUTPUT)
        except BlockingIOError:
            return
        self._read += piece
        if not piece:
            self.ended.set()
        elif len(self._read) > MOST_OUTPUT:
            self.flooded.set()
        if not piece or self.flooded.is_set():
            self._loop.remove_reader(self.reading)

    def line(self) -> str:
        """Return the first line that says anything, fit for a log."""
        for line in bytes(self._read[:MOST_OUTPUT]).decode("utf-8", "replace").splitlines():
            shown = " ".join("".join(sign if sign.isprintable() else " " for sign in line).split())
            if shown:
                return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 3] + "..."
        return ""

    def close(self) -> None:
        self._loop.remove_reader(self.reading)
        for end in (self.reading, self.writing):
            if end >= 0:
                os.close(end)


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return all variables that the program sees."""
    return {"PATH": _PATH, "LANG": "C.UTF-8", **variables}


def _verdict(code: int | None, line: str) -> Verdict:
    if code == 0:
        return Verdict(True)
    if line:
        return Verdict(False, line)
    if code is not None and code < 0:
        return Verdict(False, f"it was ended by signal {-code}")
    return Verdict(False, f"it ended with exit code {code}")


async def _end(process: Process) -> None:
    """Kill what is left of the program, and of its children."""
    if process.returncode is None:
        with contextlib.suppress(asyncio.CancelledError):  # The agent ends: the program ends first.
            for child in await asyncio.to_thread(_descendants, process.pid):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        _kill_group(process.pid)
        await process.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# --- what the agent finds by itself -----------------------------------------------------------------------------------

LEAST_S: Final = 30.0
WORDS_S: Final = 600.0
_PATIENCE_S = 2.0
"""Seconds that a caller waits for a look."""
_SILENT_S = 20.0
"""Seconds after which a file system or an engine that has not answered counts as silent."""
_BYTES, _INODES, _PROCESSES = 32 * 2**20, 1000, 50
_SMALL = 50
"""Fraction of a small file system, as one part in so many, that has to be free."""
_FIRST_ANSWER_S = 2.0
"""Seconds that a join waits for the health program; a slower one answers later."""


class Room(NamedTuple):
    """What is free of something; `total` is 0 if nothing limits it, or if nobody knows."""

    free: int
    total: int

    def scarce(self, most: int, *, already: bool) -> bool:
        """Return whether hardly anything is free: less than `most`, twice that if it was `already` scarce, and less of
        something small."""
        bound = min(most, self.total // _SMALL)
        return bool(self.total) and self.free < max(bound, 1) * (2 if already else 1)


class FoundFolder(NamedTuple):
    """A look at a folder's file system."""

    bytes: Room
    inodes: Room
    writable: bool


class Found(NamedTuple):
    """A look at the machine."""

    folders: dict[str, FoundFolder]
    """Folders by name, without those that could not be looked at, about which others complain."""
    processes: Room


class Fitness:
    """The reasons of one node."""

    def __init__(
        self,
        node: str,
        folders: Callable[[], Mapping[str, Path]],
        silence_s: Callable[[], float],
        *,
        program: HealthProgram | None = None,
        look: Callable[[Mapping[str, Path], Callable[[str], None]], Found] | None = None,
        least_s: float = LEAST_S,
    ) -> None:
        """`folders` returns the folders to look at, by name; `silence_s` how long the engine has not answered.  `look`
        looks at the machine and blocks, reporting each folder's name before it; without it, only the others count."""
        self.program = program
        self._node = node
        self._folders = folders
        self._silence_s = silence_s
        self._look = look
        self._least_s = least_s
        self._looking: asyncio.Task[Found] | None = None
        self._begun = 0.0
        self._at = ""
        """The folder that is being looked at."""
        self._found = Found({}, Room(0, 0))
        self._since: dict[str, float] = {}
        """Begin of each reason, in the loop's seconds."""
        self._words: dict[str, tuple[str, float]] = {}
        """The words of each reason, and since when."""

    async def join(self) -> None:
        """Called before the node joins: only what the health program says from now on counts."""
        if self.program is not None:
            await self.program.again(_FIRST_ANSWER_S)

    async def reasons(self) -> list[Unfit]:
        """Look, and return why the node takes nothing new."""
        now = asyncio.get_running_loop().time()
        await self._look_now(now)
        troubles = self._judge(now)
        for code, since in self._since.items():
            if code not in troubles and now - since < self._least_s and code != "health_program":
                troubles[code] = self._words[code][0]
        for code, text in troubles.items():
            reported, at = self._words.get(code, ("", -WORDS_S))
            if code not in self._since or (reported != text and now - at >= WORDS_S):
                _log.error("the node takes nothing new", node=self._node, reason=text)
                self._words[code] = text, now
        for code in [code for code in self._since if code not in troubles]:
            _log.info("a reason to take nothing new is gone", node=self._node, reason=self._words.pop(code)[0])
        self._since = {code: self._since.get(code, now) for code in troubles}
        return [Unfit(code, clipped(self._words[code][0], LONGEST_UNFIT)) for code in sorted(troubles)][:MOST_UNFIT]

    # --- looking --------------------------------------------------------------------------------------------------------

    async def _look_now(self, now: float) -> None:
        """Look at the machine in a thread, of which there is never more than one: a file server that hangs holds it."""
        if self._look is None:
            return
        if self._looking is None:
            self._begun = now
            self._looking = asyncio.create_task(asyncio.to_thread(self._look, self._folders(), self._note))
        looking = self._looking
        await asyncio.wait([looking], timeout=_PATIENCE_S)  # Others may wait for the same look.
        if looking.done() and looking is self._looking:
            self._looking = None
            self._found = looking.result()

    def _note(self, name: str) -> None:
        self._at = name

    # --- judging --------------------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> dict[str, str]:
        """Return the reasons of this moment, with their words."""
        paths = self._folders()
        made: dict[str, str] = {}
        for name, folder in self._found.folders.items():
            made |= judge(name, paths.get(name, Path("/")), folder, self._since)
        if self._looking is not None and now - self._begun >= _SILENT_S:
            path = self._folders().get(self._at, "")
            made[f"{self._at}_silent"] = f"{_NAMES[self._at]} {path} does not answer: look at its mount and its server"
        if self._found.processes.scarce(_PROCESSES, already="processes" in self._since):
            free, total = self._found.processes
            made["processes"] = f"only {max(free, 0)} more of {total} processes can be started there"
        if self._silence_s() >= _SILENT_S:
            made["engine_silent"] = "its engine does not list its containers: look at it there"
        if self.program is not None and (verdict := self.program.verdict) is None:
            made["health_program"] = "its health program has not answered yet"
        elif self.program is not None and verdict is not None and not verdict.fit:
            made["health_program"] = f"its health program says: {verdict.why}"
        return made


_NAMES = {"data": "its data folder", "engine": "its engine's folder", "checkpoints": "the folder of checkpoints"}


def judge(name: str, path: Path, found: FoundFolder, before: Mapping[str, object]) -> dict[str, str]:
    """Return what is wrong with a folder, by code, in words.  `before` has the codes that are in force."""
    made: dict[str, str] = {}
    what = f"{_NAMES[name]} {path}"
    if not found.writable:
        made[f"{name}_read_only"] = f"{what} can't be written: look at its mount and its permissions"
        return made
    if found.bytes.scarce(_BYTES, already=f"{name}_bytes" in before):
        free, total = found.bytes
        of = f"{humanize(MEMORY, max(free, 0))} of {humanize(MEMORY, total)} are free"
        made[f"{name}_bytes"] = f"{what} is full ({of}): make room there"
    if found.inodes.scarce(_INODES, already=f"{name}_inodes" in before):
        free, total = found.inodes
        made[f"{name}_inodes"] = f"{what} is out of inodes ({free:,} of {total:,} are free): remove files there"
    return made


# --- the machine --------------------------------------------------------------------------------------------------------


def look_at_machine(folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
    """Look at these folders and at the machine's processes.  Blocks.  `note` is called with each folder's name before it."""
    looked_at: dict[str, FoundFolder] = {}
    for name, path in folders.items():
        note(name)
        try:
            looked_at[name] = look_at_folder(path, own=name != "engine")
        except OSError:
            continue  # A folder that is not there is no question of room: the one of checkpoints has its own checks.
    return Found(looked_at, processes_left())


def look_at_folder(path: Path, *, own: bool = True) -> FoundFolder:
    """Look at a folder's file system.  `own`: whether the agent itself writes there.  Blocks.  Raises OSError."""
    seen = os.statvfs(path)
    return FoundFolder(
        bytes=Room(seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize),
        inodes=Room(seen.f_favail, seen.f_files),
        writable=not seen.f_flag & os.ST_RDONLY and (not own or os.access(path, os.W_OK | os.X_OK)),
    )


def processes_left(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Room:
    """Return how many processes can still be started, by the tightest of the kernel's limits, those of the control groups that
    this process is in, and the user's; threads count as processes.  Blocks."""
    rooms = [_of_kernel(proc), *_of_groups(proc, groups), *_of_user(proc)]
    return min((room for room in rooms if room.total), default=Room(0, 0))


def _of_kernel(proc: Path) -> Room:
    try:
        most = min(int((proc / "sys/kernel" / name).read_text()) for name in ("threads-max", "pid_max"))
        there = int((proc / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return Room(0, 0)
    return Room(most - there, most)


def _of_groups(proc: Path, groups: Path) -> list[Room]:
    """Return the room in this process's control group and in those above it, of version 2 or 1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        base = groups / controllers
        place = base / path.lstrip("/")
        while place.is_relative_to(base):
            try:
                most, there = ((place / name).read_text().strip() for name in ("pids.max", "pids.current"))
                rooms += [Room(int(most) - int(there), int(most))] if most != "max" else []
            except (OSError, ValueError):
                pass  # The group at the root has no limit, and another machine's view may lack some.
            place = place.parent
    return rooms


def _of_user(proc: Path) -> list[Room]:
    """Return what RLIMIT_NPROC leaves to this user; it does not bind root."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    user = os.geteuid()
    if user == 0 or most == resource.RLIM_INFINITY or most > sys.maxsize:
        return []
    there = 0
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == user:
                    there += len(os.listdir(Path(entry.path, "task")))
            except OSError:
                continue  # It has ended.
    return [Room(most - there, most)]
