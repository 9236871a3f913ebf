"""A worker's own record of when it ran and how far it had come, independent of all other records.

SAMPLES_PRESENCE sets the seconds between marks; without it nothing is written.  When it starts, each process first creates
its own file in the checkpoint folder, `presence/GENERATION.SLOT.WORLD_SIZE.TOKEN`, and appends lines of "wall-clock-ns step".
A killed worker records no end, so its last mark is the end, to within the time between two marks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "SAMPLES_PRESENCE"
FOLDER = "presence"


class Mark(NamedTuple):
    """One line of a record."""

    at: int
    """UTC ns."""
    step: int
    """The last step completed; 0 before the first, and before a resumed worker has read its checkpoint."""


class Presence:
    """Writes marks to a file from a thread, so that a waiting worker is also recorded.  Without a path, nothing."""

    def __init__(self, path: Path | None = None, every_s: float = 0.0) -> None:
        """Raises OSError if the file cannot be created."""
        self.step = 0
        """Set by the training loop."""
        self._file: int | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._mark()
        threading.Thread(target=self._continue, args=(every_s,), daemon=True).start()

    def _continue(self, every_s: float) -> None:
        while True:
            time.sleep(every_s)
            try:
                self._mark()
            except OSError:
                continue  # A full disk must not stop training; the gap shows.

    def _mark(self) -> None:
        assert self._file is not None
        os.write(self._file, b"%d %d\n" % (time.time_ns(), self.step))


def begin(environment: Mapping[str, str]) -> Presence:
    """Start the record that the environment requests; end the process if it can't be created."""
    wanted, folder = environment.get(VARIABLE), environment.get("DORM_CHECKPOINT_DIR")
    if not wanted or not folder:
        return Presence()
    place = [environment.get(f"DORM_{part}", "0") for part in ("GENERATION", "SLOT", "WORLD_SIZE")]
    name = ".".join(
        [*place, os.urandom(4).hex()]
    )  # a second process in the same place must not write to the first one's file
    try:
        return Presence(Path(folder) / FOLDER / name, float(wanted))
    except (OSError, ValueError) as error:
        print(f"{VARIABLE}={wanted}: no record can be made in {folder}: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def marks(path: Path) -> list[Mark]:
    """Return the complete lines of one worker's record."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [Mark(int(at), int(step)) for at, step in (line.split() for line in lines)]
