"""Where `/metrics` is served.

MetricsError   the address is malformed, or cannot be used
"""

from __future__ import annotations

import re
from typing import NamedTuple

from events.addresses import joined
from events.errors import DormError

DEFAULT_PORT = 9475
OFF = "off"
_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]\s]*)):)?(?P<port>[0-9]{1,5})")


class MetricsError(DormError):
    """The address is malformed, or cannot be used."""

    code = "metrics.address.malformed"


class Address(NamedTuple):
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 for any free one."""

    def __str__(self) -> str:
        return joined(self.host, self.port)


def parse_address(text: str) -> Address | None:
    """Parse `HOST:PORT`, `[IPv6]:PORT`, or a port alone, which stands for loopback; None for `off`.  Raises MetricsError."""
    if text.strip() == OFF:
        return None
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise MetricsError(
            f"{text[:80]!r} is not an address; write HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}, or off"
        )
    return Address(match["six"] or match["host"] or "127.0.0.1", int(match["port"]))
