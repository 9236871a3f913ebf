"""The progress beside a log, copied next to an archive of the log (`events.archive.progress`)."""

from __future__ import annotations

from contextlib import aclosing
from importlib.metadata import version
from typing import TYPE_CHECKING

from dorm.core.query.concerns import Concerns
from events.archive.blocks import Header
from events.archive.progress import progress_path
from events.archive.segments import SegmentWriter
from events.log.interface import time_of
from events.positions import logged_progress
from replay.export.selection import range_of
from replay.reading import cluster_name
from replay.whole_file import in_thread, whole_file

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog
    from replay.export.selection import Selection


async def export_progress(
    log: ReadableLog, path: Path, selection: Selection, *, force: bool = False
) -> tuple[str, int]:
    """Copy the reports of a selection's apps in its time; return the file and how many records.

    The file appears under its name only once it is complete.  Raises ExportError, MomentError, what reading raises, and
    LogRefused if the file can't be written."""
    target = progress_path(path)
    chosen = await range_of(log, selection)
    since = await time_of(log, chosen.after) if chosen.after else 0
    latest = await time_of(log, chosen.end) if selection.until is not None else None
    concerns = Concerns(apps=selection.apps)
    header = Header(
        cluster=await cluster_name(log), made_by=f"dorm {version('dorm')}", sparse=True, chosen={"kind": ["progress"]}
    )
    async with whole_file(target, force=force) as file:
        writer = await in_thread(SegmentWriter, file, header)
        after = await log.progress.at_time(since) if since else 0
        async with aclosing(log.progress.read(after=after)) as batches:
            async for batch in batches:
                wanted = [
                    record
                    for record in batch
                    if (latest is None or record.time <= latest) and concerns.wants(logged_progress(record, 0))
                ]
                await in_thread(writer.add, wanted)
        await in_thread(writer.finish)
    return str(target), writer.count
