"""Parse the engine's log stream: frames of 1 byte stream number, 3 of zero, 4 of length, then the data.

(Engine API, "Stream format" of the attach endpoint.)  aiodocker's own reader decodes to text, which would corrupt binary
output, and mistakes a broken connection for the end.
"""

from __future__ import annotations

from typing import Final

_HEADER: Final = 8


class Frames:
    """An incremental parser; stdout and stderr come out mixed, in the order of their arrival."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads completed by this data."""
        data = self._rest + data
        at, found = 0, []
        while at + _HEADER <= len(data):
            end = at + _HEADER + int.from_bytes(data[at + 4 : at + _HEADER], "big")
            if end > len(data):
                break
            if end > at + _HEADER:
                found.append(data[at + _HEADER : end])
            at = end
        self._rest = data[at:]
        return found

    @property
    def complete(self) -> bool:
        """Whether the stream ended between two frames."""
        return not self._rest
