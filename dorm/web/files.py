"""The page's files, as a server serves them: `/` is `index.html`, and `/assets/NAME` each of `ASSETS`."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePosixPath

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the live page: its own files only, no inline script or style.  Texts of the log reach the page as text; should one ever
reach it as HTML, this keeps it from running."""
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of the page and its assets."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ROOT = resources.files("dorm.web") / "page"


def _names() -> tuple[str, ...]:
    found = [(folder, one.name) for folder in ("", "pages", "vendor") for one in (_ROOT / folder).iterdir()]
    return tuple(
        sorted(f"{folder}/{name}" if folder else name for folder, name in found if PurePosixPath(name).suffix in _TYPES)
    )


ASSETS = _names()
"""Names of all files of the page, relative to `/assets/`."""


def content_type(name: str) -> str:
    return _TYPES[PurePosixPath(name).suffix]


def read(name: str) -> bytes:
    """Return a file's content.  Raises KeyError for a name that is not in `ASSETS`: no path leads out of the page's folder."""
    if name not in ASSETS:
        raise KeyError(name)
    return (_ROOT / name).read_bytes()
