"""What running containers read about their app: the files that `DORM_MEMBERS` and `DORM_BATCH` name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agents.engines import elastic
from agents.runtime.interface import BATCH_FILE, MEMBERS_FILE

if TYPE_CHECKING:
    from agents.desired import DesiredApp


class Announced(NamedTuple):
    """The contents of a container's files; 0 for a file that its app does not have."""

    membership: int = 0
    """Of a live app: the one that was announced last."""
    batch: int = 0
    """Of an app that accepts several batch sizes: the one that was decided last, in samples."""


def announced(app: DesiredApp) -> Announced:
    """Return the contents for the files of the app's containers."""
    return Announced(app.membership if app.live else 0, app.batch_size)


def files_of(app: DesiredApp) -> dict[str, bytes]:
    """Return these files by name."""
    files = {}
    if app.live:
        files[MEMBERS_FILE] = elastic.announcement(
            app.generation, app.membership, app.spec.deadlines.live_s, app.members, app.founders
        )
    if app.batch_size:
        files[BATCH_FILE] = b"%d\n" % app.batch_size
    return files
