"""Ports that stay free until a test's server listens there."""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_EACH = 1200


def _own_ports() -> Iterator[int]:
    """Return ports that no other test of this run uses, and no test before for a long while.

    Each of pytest-xdist's workers has its own.  They lie below those of nodes and those that Linux takes for outgoing
    connections: one of those could occupy a port that a server is about to listen on, or had before a restart."""
    part = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % 8
    ports = range(10_000 + _OF_EACH * part, 10_000 + _OF_EACH * (part + 1))
    start = random.SystemRandom().randrange(len(ports))  # Another run beside this one starts elsewhere.
    return itertools.cycle([*ports[start:], *ports[:start]])


_ports = _own_ports()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nothing listens now."""
    found: list[int] = []
    while len(found) < count:
        port = next(_ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
