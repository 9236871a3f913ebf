"""The page's files: `/` of a server is `index.html`, and `/assets/NAME` each of `ASSETS`.

Browsers get no comments: they are a tenth of the size of the modules, and only for readers of the source.
"""

from __future__ import annotations

import re
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
    return lean(name, (_ROOT / name).read_bytes())


_COMMENTS = re.compile(rb"^ *(//[^\n]*|/\*\*.*?\*/ *)\n", re.MULTILINE | re.DOTALL)
"""Comments on lines of their own.  No text of the page begins a line so."""


def lean(name: str, body: bytes) -> bytes:
    """Return a file as browsers get it: a module without its comments.  What others wrote (`vendor`) stays as it is."""
    return _COMMENTS.sub(b"", body) if name.endswith(".js") and not name.startswith("vendor/") else body
