"""Text in the configuration of a NATS server.

Its strings look like JSON's, and differ: they know `\\xHH` for one byte, and no `\\uHHHH`.  So each byte that is not a plain
character is written as its number, and any name of a file or subject arrives as it is, whatever its encoding.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def quoted(text: str | os.PathLike[str]) -> str:
    """Return a string."""
    return '"' + "".join(map(_shown, os.fsencode(text))) + '"'


def quoted_list(texts: Iterable[str]) -> str:
    """Return a list of strings."""
    return f"[{', '.join(map(quoted, texts))}]"


def _shown(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\x{byte:02x}"
