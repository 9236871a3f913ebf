"""The records in the folder of a process-runtime container, and which of its processes are alive.  All of it blocks, briefly.

`agents.runtime.process.supervisor` writes the records (its docstring has their formats) and holds the lock while it
lives.  So:

    exited                          ended, with that code
    refused                         never ran; the text says why
    lock taken, started             runs, under its supervisor
    lock taken, no started          is being started
    lock free, started              the supervisor was killed: the program runs on as an orphan, or it ended with an
                                    unknown code (`-`, and `reboot` if that ended it).  Leftovers of an orphan are killed
                                    here, in the supervisor's place
    lock free, no started           never ran; may be started

A disk that failed or lost its power may have kept half of a record, zeros, or nothing.  Such a record is *damaged*: it
counts as there, since each is written whole, and nothing that it says is believed.  So

    exited, refused     ended, in an unknown way
    started             runs if the lock is taken; the program is then the supervisor's first child.  Otherwise ended in an
                        unknown way, once no process is left that has the container's environment
    launch              commands next to the program can't be run; a container that never ran is made again
    hash                the container is taken for the one that its key names; one that never ran is made again

`Found` names the damaged records, and the runtime logs them.  Records that can't be written again are synced to disk.

*Volumes* are below the private directory, as mounts if this agent may mount, else as links.  The supervisor makes a
mount in a private mount namespace of the program, so no other process sees it and it ends with the program. It
prevents a program from writing to a volume by mistake; a program that runs as root could mount it again. A link
prevents nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import psutil

from agents.runtime.interface import ContainerSpec, Key, Seen, Unavailable, Use
from agents.runtime.run_dirs import RUN
from events.durable import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agents.runtime.interface import Mount


# --- volumes of the node ----------------------------------------------------------------------------------------------

_CAP_SYS_ADMIN: Final = 21
FILE: Final = "mounts"
"""The record that the supervisor reads: name, source, target and `ro` or `rw` of each, NUL-separated."""


def may_mount() -> bool:
    """Return whether this process may mount (CAP_SYS_ADMIN of capabilities(7))."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def put(new: Path, mounts: Sequence[Mount], *, mounting: bool) -> None:
    """Make the places of the volumes in a container's folder that is being filled.  Raises OSError."""
    if not mounts:
        return
    folder = new / RUN / "volumes"
    folder.mkdir(mode=0o700)
    for mount in mounts:
        if mounting:
            (folder / mount.name).mkdir()
        else:
            (folder / mount.name).symlink_to(mount.source)
    if mounting:
        fields = [
            field
            for mount in mounts
            for field in (mount.name, mount.source, mount.target, "ro" if mount.read_only else "rw")
        ]
        with (new / FILE).open("wb") as file:
            file.write(b"\0".join(map(os.fsencode, fields)))
            file.flush()
            os.fsync(file.fileno())


def inside(folder: Path, program: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return how to run a command among the mounts of a running program, by nsenter(1)."""
    if not program or not (folder / FILE).exists():
        return command
    return "nsenter", f"--mount=/proc/{program}/ns/mnt", "--wd=.", "--", *command


# --- records ----------------------------------------------------------------------------------------------------------

PYTHON: Final = "DORM_PYTHON"
"""The variable that holds the path of an app's Python, if its spec names one."""
OF_NETWORK: Final = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST", "PIP_CERT", "UV_CONFIG_FILE", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INSECURE_HOST", "TZ",
)  # fmt: skip
"""Variables of the agent that its processes have too."""
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of fcntl(2) on 64-bit Linux
_SWEEP_S = 2.0
_DAMAGE: Final = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EISDIR)
"""Errors of a read that say that a file is damaged, and not that the machine lacks something at the moment."""
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_STARTED: Final = re.compile(r"([0-9]{1,10}) ([0-9]{1,20}) ([0-9A-Za-z-]{1,64}) ([0-9]{19})", re.ASCII)
_EXITED: Final = re.compile(r"(-|[0-9]{1,5}) ([0-9]{19})(?: (lease|reboot|damaged))?", re.ASCII)
"""Times are written with 19 digits, which suffice until the year 2286, so one that is cut off is seen."""
_REASON: Final = re.compile(r"[^\0]+")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Launch(msgspec.Struct, frozen=True):
    """How to start the program."""

    workdir: str
    command: tuple[str, ...]
    environment: dict[str, str]


class Found(msgspec.Struct, frozen=True):
    """One container and its live processes: `supervisor` and `program` are pids, 0 if there is none."""

    seen: Seen
    supervisor: int = 0
    program: int = 0
    start_time: str = ""
    damaged: tuple[str, ...] = ()
    """Records that can't be believed."""


class _Record(NamedTuple):
    """A record of one line, as it is on disk."""

    text: str
    """"" if there is none, or if it is damaged."""
    damaged: bool = False
    written: int = 0
    """UTC ns."""


class _Started(NamedTuple):
    program: int
    start_time: str
    boot: str
    at: int


def write_launch(folder: Path, launch: Launch, log_cap: int, spec_hash: str) -> None:
    """Write everything that the supervisor needs; `log_cap` in bytes."""
    head = (launch.workdir, str(log_cap), str(len(launch.command)))
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    fields = (*head, *launch.command, *variables)
    write_synced(folder / "launch", b"".join(os.fsencode(field) + b"\0" for field in fields))
    write_synced(folder / "hash", spec_hash.encode())
    (folder / "lock").touch(mode=0o600)
    (folder / "log").touch(mode=0o600)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file whose content survives a loss of power.  Raises OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_launch(folder: Path) -> Launch:
    """Read what `write_launch` wrote.  Raises `Unavailable` if that is damaged."""
    try:
        *fields, rest = [os.fsdecode(field) for field in (folder / "launch").read_bytes().split(b"\0")]
        count = int(fields[2])
        command, variables = tuple(fields[3 : 3 + count]), [field.partition("=") for field in fields[3 + count :]]
        whole = not rest and count == len(command) > 0 and fields[0] and all(name and is_ for name, is_, _ in variables)
    except (IndexError, ValueError, FileNotFoundError):
        whole = False
    except OSError as failure:
        if failure.errno not in _DAMAGE:
            raise
        whole = False
    if not whole:
        raise Unavailable(
            f"{folder / 'launch'} is damaged, so no command can run in this container", code="container.record.damaged"
        )
    return Launch(fields[0], command, {name: value for name, _, value in variables})


def is_launch_damaged(folder: Path) -> bool:
    """Return whether a container can't be started from its records."""
    try:
        read_launch(folder)
        fields = (folder / FILE).read_bytes().split(b"\0")
    except Unavailable:
        return True
    except FileNotFoundError:
        return False  # it has no volumes
    return len(fields) % 4 != 0 or not all(fields)


def environment(spec: ContainerSpec, inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Merge a minimal environment, the spec's, and the runtime's own.

    `inherited` has the defaults (PATH, HOME, LANG, TMPDIR); `own["PATH"]` goes in front of the spec's PATH.  If the spec names
    the path of a Python, that one's programs come first, and `own["PATH"]` last.
    """
    python = spec.env.get(PYTHON, "")
    merged = {**inherited, **(_of_python(python) if python else {}), **spec.env, **own}
    given = spec.env.get("PATH") or inherited["PATH"]
    merged["PATH"] = f"{os.path.dirname(python)}:{given}:{own['PATH']}" if python else f"{own['PATH']}:{given}"
    return merged


def of_machine() -> dict[str, str]:
    """Return defaults that programs expect on the agent's machine: its user's name, and how it reaches networks and indexes of
    packages."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = "dorm"
    names = (*OF_NETWORK, *(name.lower() for name in OF_NETWORK if name.endswith("_PROXY")))
    variables = {name: value for name in names if (value := os.environ.get(name))}
    return {"USER": user, "LOGNAME": user, **variables}


def _of_python(python: str) -> dict[str, str]:
    """Return what the activation of a virtual environment or of a conda environment sets; for any other Python, where the
    packages of the agent's user are, because a container has another home."""
    prefix = Path(python).parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        return {"VIRTUAL_ENV": str(prefix)}
    if (prefix / "conda-meta").is_dir():
        return {"CONDA_PREFIX": str(prefix)}
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
    return {"PYTHONUSERBASE": str(base)} if any(base.glob("lib/python3*/site-packages")) else {}


def look(folder: Path, key: Key) -> Found | None:
    """Return the current state of this folder's container; None if there is no such folder."""
    hashed = _read(folder / "hash", _HASH)
    if not hashed.text and not folder.is_dir():
        return None
    identity = hashed.text
    damaged = () if identity else ("hash",)
    for _ in range(2):  # twice, in case the lock was released between reading the records and testing the lock
        ended = _ended(folder, key, identity, damaged)
        if ended is not None:
            return ended
        supervisor = lock_holder(folder / "lock")
        if supervisor:
            break
    started, bad = _started(folder)
    if bad:
        return _look_without_started(folder, key, identity, supervisor, (*damaged, "started"))
    if started is None:
        return Found(Seen(key, "created", identity), supervisor, damaged=damaged)
    program, start_time, boot, at = started
    running = Seen(key, "running", identity, started_at=at)
    if supervisor:
        return Found(running, supervisor, program, start_time, damaged)
    same_boot = boot == _boot_id()
    if same_boot:
        if _alive(program, start_time):
            return Found(running, 0, program, start_time, damaged)
        if not _sweep_session(program, start_time):
            return Found(running, damaged=damaged)
    return _note_end(folder, key, identity, "" if same_boot else " reboot", at, damaged)


def _look_without_started(
    folder: Path, key: Key, identity: str, supervisor: int, damaged: tuple[str, ...]
) -> Found | None:
    """Return the state of a container whose `started` is damaged."""
    if supervisor:
        program, start_time = _first_child(supervisor)
        at = _started_at(start_time) if program else 0
        return Found(Seen(key, "running", identity, started_at=at), supervisor, program, start_time, damaged)
    if not _sweep(lambda: _with_environment_of(folder)):
        return Found(Seen(key, "running", identity), damaged=damaged)
    return _note_end(folder, key, identity, " damaged", 0, damaged)


def _note_end(
    folder: Path, key: Key, identity: str, how: str, started_at: int, damaged: tuple[str, ...]
) -> Found | None:
    """Write the record of an end that no supervisor has seen."""
    try:
        write_whole(folder / "exited", f"- {time.time_ns():019d}{how}".encode(), replace=False, sync=False)
    except OSError:  # a full disk must hide neither this container nor the others
        seen = Seen(
            key,
            "exited",
            identity,
            started_at=started_at,
            exited_at=started_at or time.time_ns(),
            interrupted=bool(how),
        )
        return Found(seen, damaged=damaged)
    return _ended(folder, key, identity, damaged)


def open_process(folder: Path, container: Found) -> int | None:
    """Open a pidfd (pidfd_open(2)) of the supervisor, or of an orphaned program; None if it has gone.

    The identity is checked after opening, so the descriptor cannot mean another process that got the same pid.
    """
    pid = container.supervisor or container.program
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    same = lock_holder(folder / "lock") == pid if container.supervisor else _alive(pid, container.start_time)
    if not same:
        os.close(descriptor)
        return None
    return descriptor


def send(folder: Path, container: Found, *, kill: bool) -> None:
    """Send SIGTERM, or kill all of it."""
    descriptor = open_process(folder, container)
    if descriptor is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            if container.supervisor:
                signal.pidfd_send_signal(descriptor, signal.SIGUSR1 if kill else signal.SIGTERM)
            elif kill:
                for process in _tree(container.program):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            else:
                os.killpg(container.program, signal.SIGTERM)
    finally:
        os.close(descriptor)


def use_of(container: Found) -> Use | None:
    """Return CPU time and resident memory of all its processes, including ended children that were waited for."""
    try:
        processes = _tree(container.supervisor or container.program)
    except psutil.NoSuchProcess:
        return None
    cpu, memory = 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            times = process.cpu_times()
            cpu += times.children_user + times.children_system
            if process.pid != container.supervisor:
                cpu += times.user + times.system
                memory += process.memory_info().rss
    return Use(cpu_s=cpu, memory=memory)


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def _read(path: Path, form: re.Pattern[str]) -> _Record:
    """Return a record; a damaged one is there and does not have this form.  Raises OSError if the machine can't read now."""
    try:
        with path.open("rb") as file:
            text = file.read(4096).decode().strip(" \n")
            written = os.fstat(file.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return _Record("")
    except UnicodeDecodeError:
        text, written = "", 0
    except OSError as failure:
        if failure.errno not in _DAMAGE:
            raise
        text, written = "", 0
    return _Record(text, False, written) if form.fullmatch(text) else _Record("", True, written)


def _started(folder: Path) -> tuple[_Started | None, bool]:
    """Return the record, None if there is none; and whether it is damaged."""
    record = _read(folder / "started", _STARTED)
    fields = record.text.split()
    if not fields or int(fields[0]) <= 1:  # signals to a process group of 0 or 1 would reach others
        return None, record.damaged or bool(fields)
    return _Started(int(fields[0]), fields[1], fields[2], int(fields[3])), False


def _ended(folder: Path, key: Key, identity: str, damaged: tuple[str, ...]) -> Found | None:
    refused = _read(folder / "refused", _REASON)
    if refused.text:
        return Found(Seen(key, "exited", identity, error=refused.text), damaged=damaged)
    if refused.damaged:
        error = "it could not be started; the record of the reason is damaged"
        return Found(Seen(key, "exited", identity, error=error), damaged=(*damaged, "refused"))
    exited = _read(folder / "exited", _EXITED)
    if not exited.text and not exited.damaged:
        return None
    started, bad = _started(folder)
    damaged += (("started",) if bad else ()) + (("exited",) if exited.damaged else ())
    code, at, *how = exited.text.split() or ("-", str(exited.written), "damaged")
    seen = Seen(
        key,
        "exited",
        identity,
        started_at=started.at if started else 0,
        exited_at=int(at),
        exit_code=None if code == "-" else int(code),
        lease_ended=how == ["lease"],
        interrupted=how in (["reboot"], ["damaged"]),
    )
    return Found(seen, damaged=damaged)


def lock_holder(path: Path) -> int:
    """Return the pid that holds the lock, 0 if it is free: F_GETLK of fcntl(2) tests without taking it."""
    try:
        with path.open("rb") as lock:
            answer = fcntl.fcntl(lock, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except FileNotFoundError:
        return 0
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on (state, ppid, pgrp, session, …), [] if the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _alive(pid: int, start_time: str) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[19].decode() == start_time and stat[0] not in (b"Z", b"X")


def _sweep_session(leader: int, start_time: str) -> bool:
    """Kill the remaining processes of an ended orphan's session; return whether none of them is left.

    A session's number is not reused while it has members, so a live process with that number and another start time shows
    that our session is long gone.
    """

    def left() -> list[int]:
        reused = _stat(leader)
        if reused and reused[19].decode() != start_time:
            return []
        return [pid for pid in psutil.pids() if _in_session(pid, leader)]

    return _sweep(left)


def _sweep(left: Callable[[], list[int]]) -> bool:
    """Kill processes until none is left; return whether that is so."""
    deadline = time.monotonic() + _SWEEP_S
    while pids := left():
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return True


def _with_environment_of(folder: Path) -> list[int]:
    """Return the processes that the program of this container has started, by the variable that names its own folder."""
    sign = b"DORM_PROGRESS=" + os.fsencode(folder) + b"/"
    pids = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = _stat(pid)
            if any(variable.startswith(sign) for variable in variables) and stat and stat[0] not in (b"Z", b"X"):
                pids.append(pid)
    return pids


def _first_child(supervisor: int) -> tuple[int, str]:
    """Return pid and start time of a supervisor's program, its first child that leads a session; 0 and "" if it has ended."""
    children = []
    for pid in psutil.pids():
        stat = _stat(pid)
        if stat and int(stat[1]) == supervisor and int(stat[3]) == pid:
            children.append((int(stat[19]), pid))
    start_time, program = min(children, default=(0, 0))
    return program, str(start_time) if program else ""


def _started_at(start_time: str) -> int:
    """Return when a process of this boot started, UTC ns."""
    return time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(start_time) * 1_000_000_000 // _TICKS)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _in_session(pid: int, session: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and int(stat[3]) == session and stat[0] not in (b"Z", b"X")
