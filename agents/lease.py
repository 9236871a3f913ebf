"""Until when what runs on a node may run on, agent or not: one record in the file `lease` of the runtime's folder.

    deadline boot_id agent_pid agent_start checksum

The deadline is in nanoseconds of CLOCK_BOOTTIME, which goes on while a machine sleeps and which nobody can set; it means
nothing after a reboot, so a record of another boot is over.  The rest names the agent's process that wrote it (`0 0` once it
has let go), so that whoever guards the node knows when nobody looks after it any more.

The record has one length and is written in place with one call: a full disk, on which no new file could be made, still takes
it, and a reader that hits upon half of it sees that by its checksum and looks again.  Python's own library only: supervisors
and guards of containers import this outside the virtual environment.
"""

import functools
import os
import time
import zlib

FILE = "lease"
_LENGTH = 128
_LOOKS = 5
_AGAIN_S = 0.002


def now_ns() -> int:
    """Nanoseconds since the machine booted, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def since_boot() -> float:
    """The same in seconds."""
    return now_ns() / 1e9


def after(seconds: float) -> int:
    """The deadline so long from now."""
    return now_ns() + int(seconds * 1e9)


@functools.cache
def boot_id() -> str:
    """Which boot of this machine it is."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time(pid: int) -> str:
    """Clock ticks from boot to the start of a process: with the pid, its identity (proc(5), field 22 of stat)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def write(path: str, deadline_ns: int, agent_pid: int) -> None:
    """`agent_pid` 0: the agent has let go.  Raises OSError."""
    identity = start_time(agent_pid) if agent_pid else "0"
    text = f"{deadline_ns} {boot_id()} {agent_pid} {identity}"
    record = f"{text} {zlib.crc32(text.encode()):08x}".ljust(_LENGTH - 1) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, record.encode(), 0)
    finally:
        os.close(file)


def left(path: str) -> "float | None":
    """Seconds until it is over, 0 or less when it is; None where there is no record.  What can't be read is over."""
    fields = _read(path)
    if fields is None:
        return None
    if not fields or fields[1] != boot_id():
        return 0.0
    return (int(fields[0]) - now_ns()) / 1e9


def until(path: str, before: "int | None") -> "int | None":
    """The deadline (0: of another boot); None where there never was a record.  Where it can't be read, or is there no more, it
    is `before`, what was read last: a record that was removed ends nothing early and extends nothing."""
    fields = _read(path)
    if fields is None:
        return before
    if not fields:
        return before or 0
    return int(fields[0]) if fields[1] == boot_id() else 0


def deadline(path: str) -> int:
    """As it was written; 0 where it is of another boot, can't be read, or is not there."""
    fields = _read(path)
    return int(fields[0]) if fields and fields[1] == boot_id() else 0


def looked_after(path: str) -> bool:
    """Whether the agent that wrote it lives and has not let go."""
    fields = _read(path)
    if not fields or fields[2] == "0" or fields[1] != boot_id():
        return False
    try:
        return start_time(int(fields[2])) == fields[3]
    except OSError:
        return False


def _read(path: str) -> "list[str] | None":
    """Its fields, none where it stays unreadable; None where there is no file."""
    for attempt in range(_LOOKS):
        if attempt:
            time.sleep(_AGAIN_S)
        try:
            with open(path, "rb") as file:
                text, _, checksum = file.read(_LENGTH).decode("ascii", "replace").strip().rpartition(" ")
        except FileNotFoundError:
            return None
        except OSError:
            continue
        fields = text.split(" ")
        if len(fields) == 4 and checksum == f"{zlib.crc32(text.encode()):08x}":
            return fields
    return []
