"""Which processes listen on a port, by the kernel's own tables (proc(5), /proc/PID/net/tcp).

Containers share their node's network, so a port says nothing about whose it is: what listens there may be another tenant's, or
the node's own.  So connections are forwarded only to a socket that a process of the container holds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """A socket that listens: the address to connect to, and its number on this machine."""

    address: str
    inode: int


def find(pids: Iterable[int], port: int, proc: Path = Path("/proc")) -> Listener | None:
    """Return a socket on which one of these processes listens at this port, None if there is none.  Blocks, briefly."""
    listening: dict[int, str] | None = None
    for pid in pids:
        if listening is None:
            with contextlib.suppress(OSError):
                listening = dict(_listening(proc / str(pid) / "net", port))
        if listening is not None and not listening:
            return None
        for inode in _sockets(proc / str(pid) / "fd"):
            if listening is not None and inode in listening:
                return Listener(listening[inode], inode)
    return None


def in_container(container_id: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a Docker container, by the names of their control groups."""
    found = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if container_id in (proc / entry / "cgroup").read_text():
                    found.append(int(entry))
    return found


def _listening(folder: Path, port: int) -> Iterator[tuple[int, str]]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # A kernel without IPv6 has no such table.
            for line in (folder / table).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port:
                    yield int(fields[9]), _reachable(local)


def _reachable(hexadecimal: str) -> str:
    """Return the address at which a listener is reached from its own machine; the kernel writes 32-bit words in the
    machine's byte order, and a socket that listens everywhere is reached on loopback."""
    raw = bytes.fromhex(hexadecimal)
    words = (raw[place : place + 4][::-1] for place in range(0, len(raw), 4))
    address = ipaddress.ip_address(b"".join(words))
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _sockets(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if found := _SOCKET.fullmatch(os.readlink(folder / name)):
                    yield int(found[1])
