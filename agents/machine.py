"""What an agent learns of its machine: how much of it apps may have, and where other nodes reach it.

*Capacity.*  A machine's cores and memory are an upper bound.  A control group, a set of CPUs or an affinity may allow
less, and a program that asks the kernel how many cores there are is not told.  So the smallest limit counts that is
found on the way from the group that will hold the containers up to the root, in version 1, version 2 or both
(cgroups(7); cgroup-v2 and the controllers of version 1 in the kernel's admin guide).  systemd's CPUQuota=, MemoryMax=,
MemoryHigh= and AllowedCPUs= are such limits, of a service or of any slice around it.

Plain processes run in the agent's own group, under its affinity.  Docker's containers run where the engine puts them:
below its parent group, which may be limited differently.  If that one is not known, the agent's own limits count.

Everything is read below one `root`, so tests bring their own machine.

*The own address* is the one from which this machine reaches the NATS servers, because other nodes reach these as well:
a machine may have several networks, only IPv6, or no default route.  A host name says nothing here: Debian gives it
127.0.1.1.  A loopback address is announced only if the machine has no other one and the server is on it, and then that
is said.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from agents.config import ConfigError
from agents.runtime import cgroups
from events.addresses import is_loopback
from events.quantities import CPU, MEMORY, humanize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# --- capacity ---------------------------------------------------------------------------------------------------------

_ROOT = Path("/")
_SHARE = 0.9
"""The part of the memory that apps get; the rest is left to the machine, or to what else the group holds."""
_V1_UNLIMITED = 1 << 62
"""Version 1 writes no limit as the largest multiple of a page below 2^63."""


class _Limit(NamedTuple):
    amount: int
    """Milli-cores, or bytes."""
    why: str
    """Origin of the limit; "" for the machine itself."""


class Detected(msgspec.Struct, frozen=True):
    """What a node may give to apps, in base units, and in words where that comes from."""

    capacity: dict[str, int]
    text: str


def detect(root: Path = _ROOT) -> Detected:
    """Return what plain processes of this process may use."""
    membership = _read(root / "proc/self/cgroup")
    return _detected(root, cgroups.memberships(membership), affinity=True)


def detect_for_engine(info: Mapping[str, Any], url: str, root: Path = _ROOT) -> Detected:
    """Return what containers of a Docker engine may use.  `info` is how it describes itself (GET /info)."""
    if not _is_local(url):  # Nothing is known of its machine but what it says.
        cores, memory = _number(info.get("NCPU")), _number(info.get("MemTotal"))
        if cores and memory:
            limits = _Limit(cores * 1000, ""), _Limit(memory, "")
            return _in_words(*limits, *limits, f"; of the machine of the Docker engine at {url}")
    parent = _parent(info, root)
    if parent is None:
        return detect(root)
    every = {controller: parent for mount in _mounts(root) for controller in mount.controllers or ("",)}
    return _detected(root, every, affinity=False)


def _detected(root: Path, membership: Mapping[str, str], *, affinity: bool) -> Detected:
    mounts = _mounts(root)
    cores = _Limit(1000 * max(1, _cores(root)), "")
    memory = _Limit(_total_memory(root), "")
    cpus = [cores, *_cpusets(root, membership, mounts), *(_affinity(root) if affinity else ())]
    cpus += _quotas(root, membership, mounts)
    bytes_ = [memory, *_memory_limits(root, membership, mounts)]
    return _in_words(
        cores,
        memory,
        min(cpus, key=lambda limit: limit.amount),  # The first of equal ones: inner groups repeat outer limits.
        min(bytes_, key=lambda limit: limit.amount),
    )


def _in_words(cores: _Limit, total: _Limit, cpu: _Limit, memory: _Limit, where: str = "") -> Detected:
    given = int(memory.amount * _SHARE)
    of_cores = f"{cpu.amount / 1000:g} of {cores.amount / 1000:g} cores" + (f": {cpu.why}" if cpu.why else "")
    of_memory = f"{humanize(MEMORY, given)} of {humanize(MEMORY, total.amount)} memory: nine tenths of "
    of_memory += f"{humanize(MEMORY, memory.amount)}, {memory.why}" if memory.why else "it"
    return Detected({CPU: cpu.amount, MEMORY: given}, f"{of_cores}; {of_memory}{where}")


# --- the machine ----------------------------------------------------------------------------------------------------


def _cores(root: Path) -> int:
    online = _count(_read(root / "sys/devices/system/cpu/online"))
    return online or sum(line.startswith("processor") for line in _read(root / "proc/cpuinfo").splitlines())


def _total_memory(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return _number(rest.split()[0]) * 1024  # The file counts in KiB, which it calls kB (proc(5)).
    return 0


def _affinity(root: Path) -> Iterator[_Limit]:
    """Yield the CPUs on which this process may run: its affinity within its set of CPUs (proc(5))."""
    for line in _read(root / "proc/self/status").splitlines():
        name, _, rest = line.partition(":")
        if name == "Cpus_allowed_list" and (count := _count(rest)):
            yield _Limit(count * 1000, "CPU affinity")


# --- control groups -------------------------------------------------------------------------------------------------


def _mounts(root: Path) -> tuple[cgroups.Mount, ...]:
    return cgroups.parse_mounts(_read(root / "proc/self/mountinfo"))


def _down_to(
    root: Path, controller: str, membership: Mapping[str, str], mounts: tuple[cgroups.Mount, ...]
) -> Iterator[tuple[Path, str]]:
    """Yield the groups from the top of what is mounted to the innermost one, each with its path as people know it.  A group
    that is out of view, in another namespace, leaves what is around it."""
    limits = cgroups.within(controller, membership, mounts)
    if limits is None:
        return
    folder = root / limits.mount.point.lstrip("/")
    shown = limits.mount.root.rstrip("/")
    for name in ("", *filter(None, limits.inside.split("/"))):
        folder, shown = folder / name, f"{shown}/{name}" if name else shown
        if folder.is_dir():
            yield folder, shown or "/"


def _cpusets(root: Path, membership: Mapping[str, str], mounts: tuple[cgroups.Mount, ...]) -> Iterator[_Limit]:
    for folder, shown in _down_to(root, "cpuset", membership, mounts):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if count := _count(_read(folder / name)):
                yield _Limit(count * 1000, f"cpuset {shown}")
                break


def _quotas(root: Path, membership: Mapping[str, str], mounts: tuple[cgroups.Mount, ...]) -> Iterator[_Limit]:
    for folder, shown in _down_to(root, "cpu", membership, mounts):
        fields = _read(folder / "cpu.max").split() or [
            *_read(folder / "cpu.cfs_quota_us").split(),
            *_read(folder / "cpu.cfs_period_us").split(),
        ]
        quota, period = (*map(_number, fields), 0, 0)[:2]
        if quota > 0 and period > 0:
            yield _Limit(max(1, quota * 1000 // period), f"cgroup quota {shown}")


def _memory_limits(root: Path, membership: Mapping[str, str], mounts: tuple[cgroups.Mount, ...]) -> Iterator[_Limit]:
    for folder, shown in _down_to(root, "memory", membership, mounts):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            if 0 < (limit := _number(_read(folder / name))) < _V1_UNLIMITED:
                yield _Limit(limit, f"cgroup limit {shown}")


# --- Docker engines -------------------------------------------------------------------------------------------------


def _is_local(url: str) -> bool:
    host = url.partition("://")[2].rpartition(":")[0]
    return url.startswith("unix://") or host in ("localhost", "[::1]") or host.startswith("127.")


def _parent(info: Mapping[str, Any], root: Path) -> str | None:
    """Return the control group below which a local engine makes its containers; None if that is not known."""
    options = info.get("SecurityOptions")
    if isinstance(options, list) and any("rootless" in str(option) for option in options):
        return None  # Below the user's own service, wherever that is.
    set_ = ""
    with contextlib.suppress(ValueError):
        document = json.loads(_read(root / "etc/docker/daemon.json") or "{}")
        set_ = str(document.get("cgroup-parent", "")) if isinstance(document, dict) else ""
    if info.get("CgroupDriver") == "cgroupfs":
        return "/" + (set_ or "docker").lstrip("/")
    if info.get("CgroupDriver") == "systemd":
        return _slice(set_ or "system.slice")
    return None


def _slice(name: str) -> str | None:
    """Return the path of a slice: `a-b.slice` lies in `a.slice` (systemd.slice(5))."""
    if not name.endswith(".slice") or "/" in name:
        return None
    parts = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[:count])}.slice" for count in range(1, len(parts) + 1)) if all(parts) else ""


# --- files ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(value: object) -> int:
    """Return a number, 0 for `max` and for what is none."""
    try:
        return int(str(value).strip())
    except ValueError:
        return 0


def _count(cpus: str) -> int:
    """Return how many CPUs a list names, as in `0-3,8`; 0 if it can't be read (cpuset(7))."""
    numbers: set[int] = set()
    for part in cpus.strip().split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            return 0
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return len(numbers)


# --- the own address --------------------------------------------------------------------------------------------------

_NATS = 4222
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses of documentation (RFC 5737, RFC 3849), for the route to everywhere: nothing is sent."""
_ADDRESS_PREFERENCES, _PREFER_PUBLIC = 72, 2
"""IPV6_ADDR_PREFERENCES and IPV6_PREFER_SRC_PUBLIC of <linux/in6.h> (RFC 5014): a temporary address (RFC 8981) is gone after a
day."""


class OwnAddress(NamedTuple):
    """An address, and how it was found."""

    address: str
    text: str


def detect_address(servers: str) -> OwnAddress:
    """Return this machine's address, given the addresses of the NATS servers.  Blocks while their names are looked up.  Raises
    ConfigError if it has none that others could reach."""
    local = ""
    for url in servers.split(","):
        host, port = _place(url)
        for address in _ways_to(host, port):
            if not is_loopback(address):
                return OwnAddress(address, f"from which it reaches {host}")
            local = address
    for anywhere in _ANYWHERE:
        for address in _ways_to(anywhere, 9):
            if not is_loopback(address):
                return OwnAddress(address, "of its default route")
    if local:
        return OwnAddress(local, "only this machine reaches it: there is no other network; name one with --address")
    raise ConfigError(
        "this machine has no route to the NATS servers, so the address at which other nodes reach it is not known; "
        "connect it to their network, or name its address with --address",
        code="config.address.unknown",
    )


def _place(url: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
        return parts.hostname or "", parts.port or _NATS
    return "", _NATS


def _ways_to(host: str, port: int) -> list[str]:
    """Return the own addresses from which packets to this host would come, by the kernel's routes."""
    addresses = []
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                if family == socket.AF_INET6:
                    with contextlib.suppress(OSError):
                        probe.setsockopt(socket.IPPROTO_IPV6, _ADDRESS_PREFERENCES, _PREFER_PUBLIC)
                probe.connect(place)
                own = str(probe.getsockname()[0]).partition("%")[0]
                if not ipaddress.ip_address(own).is_link_local:  # Which interface it means, only this machine knows.
                    addresses.append(own)
    return addresses
