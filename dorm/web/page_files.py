"""The page's files: `/` of a server is `index.html`, and `/assets/NAME` each of `ASSETS`."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePosixPath

_TYPES = (".html", ".js", ".css", ".svg")
_ROOT = resources.files("dorm.web") / "page"


def _names() -> tuple[str, ...]:
    found = [(folder, one.name) for folder in ("", "pages", "vendor") for one in (_ROOT / folder).iterdir()]
    return tuple(
        sorted(f"{folder}/{name}" if folder else name for folder, name in found if PurePosixPath(name).suffix in _TYPES)
    )


ASSETS = _names()
"""Names of all files of the page, relative to `/assets/`."""


def read(name: str) -> bytes:
    """Return a file's content.  Raises KeyError for a name that is not in `ASSETS`: no path leads out of the page's folder."""
    if name not in ASSETS:
        raise KeyError(name)
    return (_ROOT / name).read_bytes()
