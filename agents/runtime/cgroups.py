"""A container's resource use, read from cgroup files: this takes microseconds, the engine's own figures a second.

Both cgroup versions are read, even mixed (`hybrid`): a controller that /proc/PID/cgroup names is on version 1,
otherwise the unified hierarchy has it.  Memory is the charged memory less the page cache that could be dropped at once
(`inactive_file`), as `docker stats` counts it.  See cgroups(7) and the kernel's admin-guide/cgroup-v2.

`left` returns how many processes and threads a process may still start: the least of all limits that it is under.

    its control groups     pids.max of its own and of all above it (cgroups(7)), such as TasksMax of its systemd unit
    its user               `Max processes` of its limits (getrlimit(2)), which does not bind root
    the kernel             threads-max

If one of them is reached, a fork fails with EAGAIN (fork(2)), and so does every start of a container as a plain
process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agents.runtime.interface import Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# --- use --------------------------------------------------------------------------------------------------------------


class Mount(NamedTuple):
    """One cgroup hierarchy: its mount point, the part that is mounted, and its controllers (none: version 2)."""

    point: str
    root: str
    controllers: tuple[str, ...]


class Place(NamedTuple):
    """The folders that account for one container; the same one twice on version 2."""

    cpu: Path
    memory: Path


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the cgroup mounts in the text of /proc/self/mountinfo (proc(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, rest = right.partition(" ")
        options = rest.rpartition(" ")[2]
        fields = left.split()
        if kind == "cgroup2":
            mounts.append(Mount(fields[4], fields[3], ()))
        elif kind == "cgroup":
            mounts.append(Mount(fields[4], fields[3], tuple(options.split(","))))
    return tuple(mounts)


class Within(NamedTuple):
    """Where a group lies in a mounted hierarchy."""

    mount: Mount
    inside: str
    """Path below the mount point; "/" if it is that, or out of view."""
    visible: bool


def memberships(text: str) -> dict[str, str]:
    """Return the group of each controller in the text of /proc/PID/cgroup; that of version 2 is under ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def locate(membership: str, mounts: tuple[Mount, ...]) -> Place | None:
    """Return where a process is accounted for, from the text of its /proc/PID/cgroup; None if that is unknown."""
    paths = memberships(membership)
    cpu = folder_of("cpuacct", paths, mounts)
    memory = folder_of("memory", paths, mounts)
    return Place(cpu, memory) if cpu is not None and memory is not None else None


def within(controller: str, paths: Mapping[str, str], mounts: tuple[Mount, ...]) -> Within | None:
    """Return where the group of a controller lies; None if its hierarchy is not mounted."""
    if controller in paths:
        path = paths[controller]
        fitting = [mount for mount in mounts if controller in mount.controllers]
    elif "" in paths:
        path = paths[""]
        fitting = [mount for mount in mounts if not mount.controllers]
    else:
        return None
    for mount in fitting:
        inside = path.removeprefix(mount.root) if mount.root != "/" else path
        if ".." not in inside.split("/"):
            return Within(mount, inside, visible=True)
    return Within(fitting[0], "/", visible=False) if fitting else None


def folder_of(controller: str, paths: Mapping[str, str], mounts: tuple[Mount, ...]) -> Path | None:
    """Return the folder of a process's control group for one controller; None if that is unknown."""
    group = within(controller, paths, mounts)
    if group is None or not group.visible:
        return None
    return Path(group.mount.point) / group.inside.lstrip("/")


def read(place: Place) -> Use:
    """Read the use.  Raises `OSError` if the container has ended, `ValueError` or `KeyError` if a file is not as
    documented."""
    if (usage := place.cpu / "cpuacct.usage").exists():
        cpu_s = int(usage.read_text()) / 1e9
    else:
        cpu_s = _table(place.cpu / "cpu.stat")["usage_usec"] / 1e6
    if (usage := place.memory / "memory.usage_in_bytes").exists():
        cache = _table(place.memory / "memory.stat")["total_inactive_file"]
    else:
        usage = place.memory / "memory.current"
        cache = _table(place.memory / "memory.stat")["inactive_file"]
    return Use(cpu_s=cpu_s, memory=max(0, int(usage.read_text()) - cache))


def find(pid: int, proc: Path = Path("/proc")) -> Place | None:
    """Return where a live process of this machine is accounted for; None if it has gone or that is out of our view."""
    try:
        membership = (proc / str(pid) / "cgroup").read_text()
        place = locate(membership, parse_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError:
        return None
    return place if place is not None and place.cpu.is_dir() and place.memory.is_dir() else None


def _table(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in path.read_text().splitlines())}


# --- how many processes may still start -------------------------------------------------------------------------------

_PROC = Path("/proc")


class Left(NamedTuple):
    """The tightest limit."""

    free: int
    most: int
    of: str
    """Owner of the limit, for people."""


def left(pid: int, proc: Path = _PROC) -> Left | None:
    """Return how many more a process may start; None if that can't be seen.  Blocks for the time of some small files."""
    limits = [*_of_groups(pid, proc), *_of_user(pid, proc), *_of_kernel(proc)]
    return min(limits, default=None)


def _of_groups(pid: int, proc: Path) -> Iterator[Left]:
    try:
        membership = (proc / str(pid) / "cgroup").read_text()
        mounts = parse_mounts((proc / "self" / "mountinfo").read_text())
    except OSError:
        return
    folder = folder_of("pids", memberships(membership), mounts)
    tops = {Path(mount.point) for mount in mounts}
    while folder is not None:
        try:
            most = int((folder / "pids.max").read_text())
            yield Left(most - int((folder / "pids.current").read_text()), most, f"the control group {folder}")
        except (OSError, ValueError):  # `max`, or the root, which has no such file
            pass
        folder = folder.parent if folder not in tops and folder != folder.parent else None


def _of_user(pid: int, proc: Path) -> Iterator[Left]:
    """Count the threads of its user, as the kernel does."""
    try:
        user = (proc / str(pid)).stat().st_uid
        lines = (proc / str(pid) / "limits").read_text().splitlines()
        most = int(next(line for line in lines if line.startswith("Max processes")).split()[2])
    except (OSError, ValueError, StopIteration):
        return
    if user == 0:
        return
    used = 0
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == user:
                    used += sum(1 for _ in (entry / "task").iterdir())
            except OSError:
                continue  # it has gone
    yield Left(most - used, most, f"the user {user}")


def _of_kernel(proc: Path) -> Iterator[Left]:
    try:
        most = int((proc / "sys" / "kernel" / "threads-max").read_text())
        used = int((proc / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return
    yield Left(most - used, most, "the kernel (threads-max)")
