"""Which Pythons a node has for the environments of plain processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from agents.environment.builder import SEARCHED

_NAME = re.compile(r"python(3\.[0-9]{1,2})")


def detect_pythons() -> tuple[str, ...]:
    """Return the versions that a process would find as a program such as `python3.12`, ascending. Blocks."""
    found = set()
    for folder in (Path(sys.executable).parent, *map(Path, SEARCHED.split(":"))):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found |= {match[1] for name in names if (match := _NAME.fullmatch(name)) and os.access(folder / name, os.X_OK)}
    return tuple(sorted(found, key=lambda version: int(version[2:])))
