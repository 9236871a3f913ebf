"""The checkpoints of an app: the files in its folder, and the reports on the log about them.

Apps name their files as they like.  A file whose name holds a step that the app reported is of that step.  Any other
file belongs to the first report after it was written, if the clocks of the file server and of the log agree."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.client.files import FilesRefused
from dorm.client.tail import Filter, Tail
from dorm.core.progress import doubt_shown
from dorm.core.settings import kept_until
from events.kinds import AppCheckpointed
from events.positions import Position
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.client.client import Client
    from dorm.client.files import Files
    from dorm.core.app import App
    from events.copying import FileEntry

_NUMBER = re.compile(r"[0-9]{1,18}")
_SLACK = SECOND
"""Nanoseconds by which a file may seem younger than the report of it."""


class CheckpointReport(msgspec.Struct, frozen=True):
    """That a container said that it has saved."""

    step: int
    generation: int
    at: int
    """Log time, UTC ns."""


class CheckpointFile(msgspec.Struct, frozen=True):
    """A file or a folder among an app's checkpoints."""

    path: str
    size: int
    """Bytes, of a folder with all in it."""
    files: int
    modified: int
    """UTC ns; of a folder the latest of all in it."""
    step: int | None
    """None if no report follows it."""
    step_by: str
    """`name` or `time`: how the step is known."""
    generation: int | None
    """The generation that reported it."""
    used: bool
    """Whether a restart would resume from this step."""
    doubtful: bool = False
    """Whether it, or a file in it, changed after the last report of a checkpoint, so it may be incomplete."""


class Checkpoints(msgspec.Struct, frozen=True):
    """All of an app's checkpoints."""

    app: str
    name: str
    restart_step: int | None
    """The step from which a restart would resume; None if it would begin with `command`."""
    restart_generation: int | None
    """The generation that reported it."""
    restart_at: int | None
    """When, as log time (UTC ns)."""
    reports: int
    """Reports of checkpoints on the log."""
    kept_until: int | None
    """Until when (UTC ns) they are kept; None while the app has not ended."""
    checkpoints: list[CheckpointFile]
    doubt: dict[str, Any] | None = None
    """Which files may be incomplete, with `text` and `advice`; None if nothing says so."""


async def checkpoints_of(client: Client, files: Files, name_or_id: str) -> Checkpoints:
    """Return an app's checkpoints.  Raises NotFound, FilesRefused, and the errors of the bus and of the log."""
    where = await files.find(name_or_id, "checkpoints")
    try:
        entries = await files.listed(where)
    except FilesRefused as error:
        if error.code not in ("files.not_found", "files.app_unknown"):
            raise
        entries = []
    kept = await client.look(lambda state: kept_until(state.settings, where.app))
    return _of(where.app, await _reports(client, where.app), entries, kept)


async def _reports(client: Client, app: App) -> list[CheckpointReport]:
    wanted = Filter(kinds=(AppCheckpointed.__name__,), apps=(app.id,))
    begin = Position(max(await client.log.start(), app.seq - 1))
    async with aclosing(Tail(client.log, client.cluster, wanted, after=begin).events()) as events:
        return [
            CheckpointReport(event.event.step, event.event.generation, event.time)
            async for event in events
            if isinstance(event.event, AppCheckpointed)
        ]


def _of(app: App, reports: Sequence[CheckpointReport], entries: Iterable[FileEntry], kept: int) -> Checkpoints:
    latest = {report.step: report for report in reports}
    doubt = doubt_shown(app)
    used = latest.get(app.checkpoint) if app.checkpoint is not None else None
    return Checkpoints(
        app=app.id,
        name=app.name,
        restart_step=app.checkpoint,
        restart_generation=used.generation if used is not None else None,
        restart_at=used.at if used is not None else None,
        reports=len(reports),
        kept_until=kept or None,
        checkpoints=rows(reports, entries, app.checkpoint, doubt["files"] if doubt and not doubt["aside"] else ()),
        doubt=doubt,
    )


def rows(
    reports: Sequence[CheckpointReport],
    entries: Iterable[FileEntry],
    restart: int | None,
    doubtful: Iterable[str] = (),
) -> list[CheckpointFile]:
    """Return the folder's contents, the oldest first; files whose names begin with a dot are not complete and left out.
    `reports` are in the order of the log, `restart` is the step from which a restart would continue, `doubtful` are paths
    of files that changed after the last report."""
    doubted = {path.partition("/")[0] for path in doubtful}
    latest = {report.step: report for report in reports}
    sizes: dict[str, tuple[int, int, int]] = {}
    for entry in entries:
        top = entry.path.partition("/")[0]
        if not top or top.startswith(".") or entry.kind == "other":
            continue
        size, files, modified = sizes.get(top, (0, 0, 0))
        is_file = entry.kind == "file"
        newer = max(modified, entry.modified) if is_file or top not in sizes else modified
        sizes[top] = size + entry.size, files + is_file, newer
    listed = []
    for path, (size, files, modified) in sizes.items():
        report, by = _report_of(path, modified, reports, latest)
        listed.append(
            CheckpointFile(
                path=path,
                size=size,
                files=files,
                modified=modified,
                step=report.step if report is not None else None,
                step_by=by,
                generation=report.generation if report is not None else None,
                used=report is not None and report.step == restart,
                doubtful=path in doubted,
            )
        )
    return sorted(listed, key=lambda file: (file.modified, file.path))


def _report_of(
    path: str, modified: int, reports: Sequence[CheckpointReport], latest: dict[int, CheckpointReport]
) -> tuple[CheckpointReport | None, str]:
    named = [number for number in map(int, _NUMBER.findall(path)) if number in latest]
    if named:
        return latest[max(named)], "name"
    after = next((report for report in reports if report.at >= modified - _SLACK), None)
    return after, "time" if after is not None else ""
