"""How many processes and threads a process may still start: the least of all limits that it is under.

    its control groups     pids.max of its own and of all above it (cgroups(7)), such as TasksMax of its systemd unit
    its user               `Max processes` of its limits (getrlimit(2)), which does not bind root
    the kernel             threads-max

If one of them is reached, a fork fails with EAGAIN (fork(2)), and so does every start of a container as a plain process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agents.runtime.cgroups import folder_of, memberships, parse_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")


class Left(NamedTuple):
    """The tightest limit."""

    free: int
    most: int
    of: str
    """Whose limit it is, for people."""


def left(pid: int, proc: Path = _PROC) -> Left | None:
    """Return how many more a process may start; None if that can't be seen.  Blocks for the time of some small files."""
    found = [*_of_groups(pid, proc), *_of_user(pid, proc), *_of_kernel(proc)]
    return min(found, default=None)


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
