"""Files next to a spec that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.errors import code_of
from events.spec import SpecError

if TYPE_CHECKING:
    from pathlib import Path


def read_beside(folder: Path, path: str, most: int, field: str) -> str:
    """Return the text of a file that a field names, of at most `most` bytes.  Raises SpecError."""
    try:
        with (folder / path).open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{field}: {path}: {error.strerror}", code=code_of(error)) from None
    if len(body) > most:
        raise SpecError(f"{field}: {path}: more than {most:,} bytes", code=f"spec.{field}.too_large")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{field}: {path}: this is not a text file (in UTF-8)", code=f"spec.{field}.not_text") from None
