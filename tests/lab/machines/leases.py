"""Leases on everything that a test or a bench creates outside its own process, so that it is certainly removed again.

Docker engines, network namespaces and mounts outlive the process that made them.  Code that creates some therefore takes a
`Lease` first, and names all of them after the lease:

    /tmp/NAME/          its files, a tmpfs of its own
    /run/netns/NAME-*   its network namespaces
    /NAME               its control groups, in every hierarchy

A lease is a lock that the kernel frees when its last holder is gone for any reason.  A guard, a separate process, waits for
that and then removes everything of that name, so a Ctrl-C, a crash and `kill -9` leave nothing behind.  If the guard dies too,
the next run finds a lease without a holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "dorm-lab"
_LEASES = Path("/run/lock")
_HOMES = Path("/tmp")
_NETNS = Path("/run/netns")
_CGROUPS = Path("/sys/fs/cgroup")
_GONE_S = 10.0


class Lease:
    """One hold on a name.  Keep it as long as anything of that name is in use."""

    def __init__(self, name: str, fd: int, guard: subprocess.Popen[bytes] | None) -> None:
        self.name = name
        self.home = _HOMES / name
        self._fd = fd
        self._guard = guard

    @classmethod
    def take(cls) -> Self:
        """Take a new name, with a waiting guard and an empty tmpfs as its home.  Needs root.

        Raises `subprocess.CalledProcessError` where mounting is forbidden."""
        _LEASES.mkdir(parents=True, exist_ok=True)
        sweep_stale()
        while True:
            name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
            fd = _open(name, os.O_CREAT | os.O_EXCL)
            if fd is not None:
                break
        guard = subprocess.Popen(
            [sys.executable, "-m", __name__, name],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the owner, not for the process that cleans up after it
        )
        lease = cls(name, fd, guard)
        lease.home.mkdir(mode=0o711)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4g,mode=711", name, str(lease.home)], check=True
        )  # faster than a disk, and removed at once
        return lease

    @classmethod
    def join(cls, name: str) -> Self | None:
        """Take a further hold on a name that others hold; None if it is being removed, or gone."""
        fd = _open(name, 0)
        return None if fd is None else cls(name, fd, None)

    def release(self) -> None:
        """Release the hold.  The guard removes everything once the last holder has released it."""
        os.close(self._fd)

    def released(self, timeout_s: float = 30.0) -> None:
        """Release the lease and wait until everything is removed; for the last holder."""
        assert self._guard is not None
        code = self._guard.wait(timeout_s)
        if code != 0:
            raise RuntimeError(f"the guard of {self.name} ended with {code}: something of it may be left")


def _open(name: str, flags: int) -> int | None:
    """Open and hold a lease file; None if it is being removed, or does not exist."""
    path = _LEASES / name
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except (FileNotFoundError, FileExistsError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def sweep_stale() -> None:
    """Remove leftovers of earlier runs whose guards died too."""
    names = {path.name for path in _LEASES.glob(f"{PREFIX}-*")}
    # A lease file is the first thing made and the last removed; without one, a name has no holder.
    names |= {path.name for path in _HOMES.glob(f"{PREFIX}-*")}
    names |= {"-".join(path.name.split("-")[:4]) for path in _NETNS.glob(f"{PREFIX}-*")}
    for name in sorted(names):
        with contextlib.suppress(BlockingIOError):
            _sweep_when_free(name, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep_when_free(name: str, lock: int) -> None:
    path = _LEASES / name
    with path.open("a") as file:
        fcntl.flock(file, lock)
        sweep(name)
        path.unlink(missing_ok=True)


def sweep(name: str) -> None:
    """Remove everything of a name, except its lease."""
    home = _HOMES / name
    namespaces = sorted(path.name for path in _NETNS.glob(f"{name}-*"))
    kill_all(home, name, namespaces)
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "delete", namespace], check=True)
    unmount_below(home)
    subprocess.run(["umount", "--lazy", "--quiet", str(home)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(home, ignore_errors=True)


def kill_all(home: Path, cgroup: str, namespaces: Iterable[str] = ()) -> None:
    """Kill the engines below `home` and everything that runs in the control groups below `cgroup` and in these network
    namespaces, and remove the control groups."""
    namespaces = list(namespaces)
    deadline = time.monotonic() + _GONE_S
    while pids := engine_pids(home) | task_pids(cgroup) | namespace_pids(namespaces):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of {home} outlive SIGKILL: {sorted(pids)}")
        time.sleep(0.01)
    for top in _cgroup_dirs(cgroup):
        for directory in sorted(_with_all_below(top), reverse=True):
            _remove_cgroup(directory)


def unmount_below(home: Path) -> None:
    """Unmount everything below a directory, the innermost first."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((path for path in mounts if path.startswith(f"{home}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, stderr=subprocess.DEVNULL)


def engine_pids(home: Path) -> set[int]:
    """Return an engine's own processes: all have a path below its home among their arguments."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            comm = (entry / "comm").read_text().strip()
            if not comm.startswith(("dockerd", "containerd", "runc", "docker-proxy")):
                continue
            if f"{home}/".encode() in (entry / "cmdline").read_bytes() and not gone(int(entry.name)):
                found.add(int(entry.name))
    return found


def task_pids(cgroup: str) -> set[int]:
    """Return every process in the control groups of that name, in any hierarchy."""
    found = set()
    for top in _cgroup_dirs(cgroup):
        for directory in _with_all_below(top):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (directory / "cgroup.procs").read_text().split()}
    return {pid for pid in found if not gone(pid)}


def namespace_pids(namespaces: Iterable[str]) -> set[int]:
    """Return every process in one of these network namespaces."""
    inodes = set()
    for namespace in namespaces:
        with contextlib.suppress(FileNotFoundError):
            inodes.add((_NETNS / namespace).stat().st_ino)
    found = set()
    for entry in Path("/proc").glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):
            if (entry / "ns" / "net").stat().st_ino in inodes and not gone(int(entry.name)):
                found.add(int(entry.name))
    return found


def gone(pid: int) -> bool:
    """Return whether a process is gone; a zombie counts, because a container may have no init that reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _cgroup_dirs(cgroup: str) -> list[Path]:
    # cgroup v2 has one hierarchy, v1 one for each controller, a level deeper.
    return [path for path in (_CGROUPS / cgroup, *sorted(_CGROUPS.glob(f"*/{cgroup}"))) if path.is_dir()]


def _with_all_below(top: Path) -> list[Path]:
    """An engine that ends may remove some of these meanwhile, which is not an error."""
    return [Path(directory) for directory, _, _ in os.walk(top)]


def _remove_cgroup(directory: Path) -> None:
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # its last process is dead but not reaped yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


if __name__ == "__main__":
    _sweep_when_free(sys.argv[1], fcntl.LOCK_EX)
