"""How engines start their containers under `launcher`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents.engines import launcher

if TYPE_CHECKING:
    from agents.engines.interface import Place

LAUNCHER: Final = "dorm-launcher.py"
FILES: Final = {LAUNCHER: Path(launcher.__file__).read_text()}
"""The launcher's source, read once when the agent starts."""
RANK: Final = ("/bin/sh", "-c", f'exec python3 "${launcher.FOLDER}/{LAUNCHER}" rank "$@"', "sh")
"""Goes before a command that is asked to stop by SIGTERM.  Each container has the launcher in a folder of its own."""


def command(place: Place, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a container: the first one leads with its `own`, the others follow it, with or without one."""
    python = ("python3", place.path(LAUNCHER))
    where = (place.master_address, str(place.master_port))
    if place.rank == 0:
        return *python, "head", *where, str(place.size), *own
    return *python, "worker", *where, str(place.rank), *own
