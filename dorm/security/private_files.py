"""Files that only their owner may read, written completely or not at all.

SecurityError    keys, certificates or contexts can't be used; the message says what to do and never holds a secret"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.durable import write_whole
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
    try:
        write_whole(path, content, mode=0o600)
    except OSError as error:
        raise SecurityError(f"{path} can't be written: {error.strerror}", code="security.not_writable") from None
