"""The ports on which a container should listen, and whether another process already does."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from events.kinds import Placed


def listens(address: str, port: int) -> bool:
    """Return whether a process on this machine listens there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            # An address that is not this host's (for example behind NAT) can't be tested.
            return error.errno == errno.EADDRINUSE
    return False


def ports_of(placement: list[Placed], slot: int, master_port: int) -> list[tuple[str, int]]:
    """Return where this slot should listen; the first slot also has the rendezvous port."""
    first = min(placed.slot for placed in placement)
    here = next(placed for placed in placement if placed.slot == slot)
    ports = (here.port, master_port if slot == first else 0)
    return [(here.address, port) for port in ports if port]
