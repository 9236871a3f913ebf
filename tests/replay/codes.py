"""The code of the error that a command printed."""

from __future__ import annotations

import re

_CODE = re.compile(r"\[([a-z_.]+)\]$")


def code_in(err: str) -> str:
    """Return the code at the end of the last line, '' if it has none."""
    found = _CODE.search(err.rstrip("\n"))
    return found[1] if found else ""
