"""Files that only their owner may read, written completely or not at all.

SecurityError    keys, certificates or contexts can't be used; the message says what to do and never holds a secret
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from events.errors import DormError

if TYPE_CHECKING:
    from pathlib import Path


class SecurityError(DormError):
    """Root of this package's errors."""

    code = "security.failed"


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may enter (0700).  Raises SecurityError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise SecurityError(
            f"the folder {path} can't be made: {error.strerror}", code="security.not_writable"
        ) from None
    return path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read (0600), in place of an earlier one.  Raises SecurityError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as writer:
                writer.write(content)
                writer.flush()
                os.fsync(writer.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SecurityError(f"{path} can't be written: {error.strerror}", code="security.not_writable") from None
