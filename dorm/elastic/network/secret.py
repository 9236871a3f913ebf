"""How members recognize each other: each proves that it can read the folder which the app's workers share.

The key is in that folder, created by the first worker that needs it.  Without a shared folder, it follows from the app's id
and generation: then a stray connection is refused, but not one from someone who knows both.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["claim", "key_of", "proof"]

_NAME = ".elastic-key"


def key_of(shared: Path | None, app: str, generation: int) -> bytes:
    """Return the key.  Raises OSError if the folder cannot be used."""
    if shared is None:
        return hashlib.sha256(f"{app}\0{generation}".encode()).digest()
    path = shared / _NAME
    if not path.exists():
        shared.mkdir(parents=True, exist_ok=True)
        # Written under another name and linked into place, so that no worker ever reads half a key.  Not by `events.durable`:
        # this library is a distribution of its own.
        aside = shared / f"{_NAME}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path.read_bytes()


def proof(key: bytes, challenge: str, *parts: object) -> str:
    """Return the answer to a challenge that only a holder of the key can give."""
    return hmac.new(key, "\0".join([challenge, *map(str, parts)]).encode(), hashlib.sha256).hexdigest()


def claim(shared: Path, generation: int, views: tuple[int, ...]) -> bool:
    """Claim the right to continue after these views; return whether this worker is the first.  Raises OSError."""
    try:
        for view in views:
            os.close(os.open(shared / f".elastic-{generation}-{view}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True
