"""Copies a log, or a part of it, into a file: an archive (records byte for byte, with snapshots), or rows for analysis.

    records of the log ─▶ sink: an archive, or one of `replay.export.tables`, which filter by the selection

A change of the records (of names, say) is inserted as a log of its own that reads through to this one, and has no snapshots if
they would not fit.

A part that starts at some moment includes the state there, so it can be folded like a whole log.  A selection of records in
between cannot, and is marked (`sparse`).

The progress beside the log goes into a file of its own next to the archive (`events.archive.progress`).
"""

from __future__ import annotations

from contextlib import aclosing
from importlib.metadata import version
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from dorm.core.query.concerns import Concerns
from dorm.core.snapshot import dump
from dorm.core.state import State
from events.archive.blocks import Header
from events.archive.progress import progress_path
from events.archive.segments import SegmentWriter
from events.log.interface import time_of
from events.positions import logged_progress
from replay.export.selection import Range, Selection, Sieve, range_of
from replay.export.sink import FileFormat, Sink
from replay.frames import FoldedFrames, Frames, NoFrames, Snapshot, TakenFrames, build, own_snapshots, state_after
from replay.reading import cluster_name
from replay.whole_file import ExportError, in_thread, whole_file

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress


# --- the log ----------------------------------------------------------------------------------------------------------

EVERYTHING = Selection()


_BY_SUFFIX = {
    "": FileFormat.archive, ".dorm": FileFormat.archive, ".parquet": FileFormat.parquet,
    ".ndjson": FileFormat.ndjson, ".jsonl": FileFormat.ndjson,
}  # fmt: skip
_PACKED = (".gz", ".zst")


class Exported(msgspec.Struct, frozen=True):
    """The result of an export."""

    file: str
    format: FileFormat
    records: int
    first: int
    """The first sequence of the requested part of the log; `last` is its last."""
    last: int
    bytes: int
    """0 for standard output."""
    rows: int | None = None
    """Events, one per row; None for an archive."""


def format_of(path: Path) -> FileFormat:
    """Return the format by the ending of the file's name.  Raises ExportError if the ending names none."""
    name = path.with_suffix("") if path.suffix in _PACKED else path
    kind = _BY_SUFFIX.get(name.suffix)
    if str(path) == "-":
        return FileFormat.archive
    if kind is None or (name is not path and kind is not FileFormat.ndjson):
        raise ExportError(
            f"{path}: the file's ending names no format; use .dorm, .parquet, .ndjson, .ndjson.gz or .ndjson.zst, or give "
            "--format",
            code="export.format.unknown",
        )
    return kind


async def export(
    log: ReadableLog,
    path: Path,
    *,
    selection: Selection = EVERYTHING,
    form: FileFormat | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Copy a selection of a log, up to its present end, into a file; `-` is standard output.

    The file appears under its name only once it is complete and durable; `force` replaces an existing file.
    Raises ExportError, MomentError, what `log.read` raises, and LogRefused if the file cannot be written.
    """
    form = form or format_of(path)
    chosen = await range_of(log, selection)
    async with whole_file(path, force=force) as file:
        state, chain = await _state_before(log, chosen, selection, form)
        sieve = Sieve(selection, state)
        frames: Frames = NoFrames()
        if form is FileFormat.archive:
            header = await _header(log, chosen, selection)
            first = None if state is None or header.sparse else dump(state, build=build(), chain=chain)
            sink: Sink = await in_thread(_Archive, file, header, sieve, first)
            frames = await _frames(log, chosen, header, state)
        else:
            from replay.export.tables import table

            sink = await in_thread(table, form, file, path, await cluster_name(log), sieve, state)
        await _copy(log, chosen, frames, sink, progress)
        if not sink.records and not selection.some and await log.torn():
            raise ExportError("no record of the log can be read, so nothing was written", code="log.damaged")
        await in_thread(sink.finish)
        size = 0 if str(path) == "-" else await in_thread(file.tell)
    return Exported(
        file=str(path),
        format=form,
        records=sink.records,
        first=chosen.after + 1,
        last=chosen.end,
        bytes=size,
        rows=sink.rows,
    )


async def _copy(log: ReadableLog, chosen: Range, frames: Frames, sink: Sink, progress: Progress | None) -> None:
    done = chosen.after
    if done < chosen.end:
        async with aclosing(log.read(after=done)) as batches:
            async for batch in batches:
                if batch[-1].seq > chosen.end:
                    batch = [record for record in batch if record.seq <= chosen.end]
                if batch:
                    await in_thread(sink.take, batch, await frames.due(batch))
                    done = batch[-1].seq
                if progress:
                    progress(done - chosen.after, chosen.end - chosen.after)
                if not batch or done == chosen.end:
                    break
    if done != chosen.end and not log.sparse:
        text = f"only {done} of {chosen.end} records could be read; nothing was written"
        raise ExportError(text, code="log.damaged")


async def _state_before(
    log: ReadableLog, chosen: Range, selection: Selection, form: FileFormat
) -> tuple[State | None, str]:
    """Return the state and the hash chain before the first record, if they can be known and the format needs them."""
    if log.sparse or not chosen.after or (form is FileFormat.cloudevents and not selection.some):
        return None, ""
    return await state_after(log, chosen.after)


async def _header(log: ReadableLog, chosen: Range, selection: Selection) -> Header:
    return Header(
        cluster=await cluster_name(log),
        made_by=f"dorm {version('dorm')}",
        start=chosen.after,
        sparse=log.sparse or selection.some,
        chosen=_words(chosen, selection),
        anonymized=log.anonymized,
        renamed=await log.renamed_upto(),
    )


async def _frames(log: ReadableLog, chosen: Range, header: Header, state: State | None) -> Frames:
    if header.sparse:
        return NoFrames()
    own = await own_snapshots(log, chosen.after, chosen.end)
    return FoldedFrames(state or State()) if own is None else TakenFrames(log, own)


class _Archive(Sink):
    rows = None

    def __init__(self, file: BinaryIO, header: Header, sieve: Sieve, first: Snapshot | None) -> None:
        self.records = 0
        self._sieve = sieve if header.sparse else None
        self._writer = SegmentWriter(file, header)
        if first is not None:
            self._writer.snapshot(*first)

    def take(self, records: list[Record], due: list[Snapshot]) -> None:
        if self._sieve is not None:
            records = [record for record in records if self._sieve.any_of(record)]
        at = 0
        for info, body in due:
            upto = info.seq - records[0].seq + 1
            self._writer.add(records[at:upto])
            self._writer.snapshot(info, body)
            at = upto
        self._writer.add(records[at:])
        self.records += len(records)

    def finish(self) -> None:
        self._writer.finish()


def _words(chosen: Range, selection: Selection) -> dict[str, list[str]]:
    """Return the request, for the header."""
    filters = {"app": [*selection.apps], "user": [*selection.users]}
    if selection.since is not None:
        filters["since"] = [str(chosen.after + 1)]
    if selection.until is not None:
        filters["until"] = [str(chosen.end)]
    return {name: values for name, values in filters.items() if values}


# --- the progress beside it -------------------------------------------------------------------------------------------


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
