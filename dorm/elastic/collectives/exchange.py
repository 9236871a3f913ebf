"""One group's rendezvous: what each member published, such as the address at which it listens.

There is no server: a member sends what it publishes to all others over their existing connections, on which each has proved
that it belongs to the app.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from dorm.elastic.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Exchange"]


class Exchange:
    """Keys and values, which come from this member and from the others."""

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, key: str, value: bytes) -> None:
        """Keep a value and send it to the others."""
        self.take(key, value)
        self._publish(key, value)

    def take(self, key: str, value: bytes) -> None:
        """Keep a value that another member has published."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def has(self, keys: Iterable[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def get(self, key: str, timeout: float) -> bytes:
        """Return a value, once it is available.  Raises PeerError after `timeout` seconds and once the exchange is closed."""
        self.wait([key], timeout)
        with self._changed:
            return self._values[key]

    def wait(self, keys: Iterable[str], timeout: float) -> None:
        """Wait until all keys have values.  Raises PeerError as `get` does."""
        wanted, deadline = set(keys), time.monotonic() + timeout
        with self._changed:
            while not wanted <= self._values.keys():
                if self._closed or time.monotonic() >= deadline:
                    why = (
                        "a member was lost" if self._closed else f"{sorted(wanted - self._values.keys())} did not come"
                    )
                    raise PeerError(f"no process group: {why}", code="elastic.peer.group")
                self._changed.wait(min(1.0, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Make all waiting callers give up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
