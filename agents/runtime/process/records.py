"""The records in the folder of a process-runtime container, and which of its processes are alive.  All of it blocks, briefly.

`agents.runtime.process.supervisor` writes the records (its docstring has their formats) and holds the lock while it lives.
So:

    exited                          ended, with that code
    refused                         never ran; the text says why
    lock taken, started             runs, under its supervisor
    lock taken, no started          is being started
    lock free, started              the supervisor was killed: the program runs on as an orphan, or it ended with an
                                    unknown code (`-`, and `reboot` if that ended it).  Leftovers of an orphan are killed
                                    here, in the supervisor's place
    lock free, no started           never ran; may be started
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from agents.runtime.interface import ContainerSpec, Key, Seen, Use

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def write_launch(folder: Path, launch: Launch, log_cap: int, spec_hash: str) -> None:
    """Write everything that the supervisor needs; `log_cap` in bytes."""
    head = (launch.workdir, str(log_cap), str(len(launch.command)))
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    (folder / "launch").write_bytes(
        b"".join(os.fsencode(field) + b"\0" for field in (*head, *launch.command, *variables))
    )
    (folder / "hash").write_text(spec_hash)
    (folder / "lock").touch(mode=0o600)
    (folder / "log").touch(mode=0o600)


def read_launch(folder: Path) -> Launch:
    """Read what `write_launch` wrote."""
    fields = [os.fsdecode(field) for field in (folder / "launch").read_bytes().split(b"\0")[:-1]]
    count = int(fields[2])
    pairs = (field.partition("=") for field in fields[3 + count :])
    return Launch(fields[0], tuple(fields[3 : 3 + count]), {name: value for name, _, value in pairs})


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
    found = {name: value for name in names if (value := os.environ.get(name))}
    return {"USER": user, "LOGNAME": user, **found}


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
    identity = _text(folder / "hash")
    if not identity and not folder.is_dir():
        return None
    for _ in range(2):  # twice, in case the lock was released between reading the records and testing the lock
        ended = _ended(folder, key, identity)
        if ended is not None:
            return Found(ended)
        supervisor = lock_holder(folder / "lock")
        if supervisor:
            break
    started = _text(folder / "started").split()
    if not started:
        return Found(Seen(key, "created", identity), supervisor)
    program, start_time, boot, at = int(started[0]), started[1], started[2], int(started[3])
    running = Seen(key, "running", identity, started_at=at)
    if supervisor:
        return Found(running, supervisor, program, start_time)
    same_boot = boot == _text(Path("/proc/sys/kernel/random/boot_id"))
    if same_boot:
        if _alive(program, start_time):
            return Found(running, 0, program, start_time)
        if not _sweep_session(program, start_time):
            return Found(running)
    try:
        _write_once(folder / "exited", f"- {time.time_ns()}{'' if same_boot else ' reboot'}")
    except FileExistsError:
        pass
    except OSError:  # a full disk must hide neither this container nor the others
        return Found(Seen(key, "exited", identity, started_at=at, exited_at=at))
    ended = _ended(folder, key, identity)
    return Found(ended) if ended is not None else None


def open_process(folder: Path, found: Found) -> int | None:
    """Open a pidfd (pidfd_open(2)) of the supervisor, or of an orphaned program; None if it has gone.

    The identity is checked after opening, so the descriptor cannot mean another process that got the same pid.
    """
    pid = found.supervisor or found.program
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    same = lock_holder(folder / "lock") == pid if found.supervisor else _alive(pid, found.start_time)
    if not same:
        os.close(descriptor)
        return None
    return descriptor


def send(folder: Path, found: Found, *, kill: bool) -> None:
    """Send SIGTERM, or kill all of it."""
    descriptor = open_process(folder, found)
    if descriptor is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            if found.supervisor:
                signal.pidfd_send_signal(descriptor, signal.SIGUSR1 if kill else signal.SIGTERM)
            elif kill:
                for process in _tree(found.program):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            else:
                os.killpg(found.program, signal.SIGTERM)
    finally:
        os.close(descriptor)


def use_of(found: Found) -> Use | None:
    """Return CPU time and resident memory of all its processes, including ended children that were waited for."""
    try:
        processes = _tree(found.supervisor or found.program)
    except psutil.NoSuchProcess:
        return None
    cpu, memory = 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            times = process.cpu_times()
            cpu += times.children_user + times.children_system
            if process.pid != found.supervisor:
                cpu += times.user + times.system
                memory += process.memory_info().rss
    return Use(cpu_s=cpu, memory=memory)


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _ended(folder: Path, key: Key, identity: str) -> Seen | None:
    if refused := _text(folder / "refused"):
        return Seen(key, "exited", identity, error=refused)
    exited = _text(folder / "exited").split()
    if not exited:
        return None
    started = _text(folder / "started").split()
    return Seen(
        key,
        "exited",
        identity,
        started_at=int(started[3]) if started else 0,
        exited_at=int(exited[1]),
        exit_code=None if exited[0] == "-" else int(exited[0]),
        lease_ended=exited[2:] == ["lease"],
        interrupted=exited[2:] == ["reboot"],
    )


def _write_once(path: Path, text: str) -> None:
    """Write the file atomically, and only if it does not exist."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    aside.write_text(text)
    try:
        os.link(aside, path)
    finally:
        aside.unlink()


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
    deadline = time.monotonic() + _SWEEP_S
    while True:
        reused = _stat(leader)
        if reused and reused[19].decode() != start_time:
            return True
        left = [pid for pid in psutil.pids() if _in_session(pid, leader)]
        if not left:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _in_session(pid: int, session: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and int(stat[3]) == session and stat[0] not in (b"Z", b"X")
