"""Which user makes a request: the one place that decides it.

A request may name a user in the header `Dorm-User`, as `dorm --user` does; nothing proves it, as nothing proves that option.
Without one it is the user who runs the process.  So everyone who reaches the API can do all that it can do, in any name.  That
is why it listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dorm.api.errors import Malformed

if TYPE_CHECKING:
    from aiohttp import web

HEADER = "Dorm-User"
PATTERN = r"^[A-Za-z0-9._@+=-]{1,64}$"


def user_of(request: web.Request, default: str) -> str:
    """Return the user's name.  Raises Malformed."""
    given = request.headers.get(HEADER)
    if given is None:
        return default
    if not re.fullmatch(PATTERN, given):
        raise Malformed(f"{HEADER}: use 1 to 64 letters, digits and any of . _ @ + = -", code="api.user.malformed")
    return given


def warning(host: str) -> str:
    """Return what it means that the API listens beyond this machine."""
    return (
        f"the API listens on {host}, beyond this machine, and knows no users yet: all who reach it can read the whole log, "
        "submit and cancel apps and change settings in anyone's name; put a proxy that authenticates in front of it, or "
        "let it listen on 127.0.0.1"
    )
