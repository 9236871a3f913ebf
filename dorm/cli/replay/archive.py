"""`dorm replay export` and `import`: a log as a file, and a file as a cluster's log."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete, complete_app
from dorm.cli.errors import Fail, WrongUsage, complain
from dorm.cli.output import Format, Output, console, counted, progress_console, show_document
from dorm.cli.source import File, log_of, parse_moment, progress_of, report_nothing_found
from replay.export.export import format_of
from replay.export.sink import FileFormat

if TYPE_CHECKING:
    from dorm.deploy.folders import Copied
    from events.log.interface import ReadableLog
    from replay.export.anonymize import AnonymizedLog
    from replay.export.export import Exported

_MOMENT = "SEQ|TIME|-10m"


def register(app: typer.Typer) -> None:
    """Register the commands of `dorm replay`."""
    app.command("export")(export_log)
    app.command("import")(import_log)


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.user for app in state.apps.values()])


@command()
async def export_log(
    cx: Cluster,
    target: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="File to write, or - for standard output; default: CLUSTER.dorm.")] = None,
    form: Annotated[FileFormat | None, typer.Option("--format", help="Format; default: by the file's ending (.dorm, .parquet, .ndjson or .jsonl, these also " "with .gz or .zst), otherwise an archive.")] = None,
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Only records since this moment: a sequence, a time, or a duration before the log's last " "record; an archive then starts with the state at that moment.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Only events up to and including this moment.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only records about this app (name or id); may be repeated. Such an archive can be read, " "but not folded.")] = None,
    user: Annotated[list[str] | None, typer.Option(metavar="USER", autocompletion=_complete_user, help="Only requests by this user, and records about this user's apps; may be repeated.")] = None,
    anonymize: Annotated[bool, typer.Option("--anonymize", help="Replace with pseudonyms: users, apps, images, commands, variables, labels, nodes and addresses. Drop messages. An audit still makes the same decisions. Takes about as long as an audit.")] = False,
    keep_nodes: Annotated[bool, typer.Option("--keep-nodes", help="With --anonymize: nodes keep their names.")] = False,
    pseudonyms: Annotated[Path | None, typer.Option(metavar="KEY.json", help="With --anonymize: also write the key that maps pseudonyms to names, for your eyes only.")] = None,
    with_progress: Annotated[bool, typer.Option("--progress", help="Also write the progress between two marks, next to the archive: FILE.progress.dorm.")] = False,
    salvage: Annotated[bool, typer.Option("--salvage", help="Also export what is intact after the damage in a damaged file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Copy the log into a file: an archive, which every command with --file reads, or rows for analysis.

    An archive holds the records byte for byte, compressed and checksummed, with
    snapshots of the state. Parquet (needs the extra `arrow`), lines of JSON and
    CloudEvents have one event in each row.  The file appears only once it is complete.

    [bold]Examples[/]

      dorm replay export incident.dorm --since -2h

      dorm replay export events.parquet --user alice

      dorm replay export incident.dorm --anonymize --pseudonyms key.json

      dorm replay export --file incident.dorm - --format ndjson | jq .kind

      dorm replay export incident.dorm --since -2h --progress

      ssh host dorm replay export - > copy.dorm
    """
    from replay.export.selection import Selection
    from replay.whole_file import ExportError

    try:
        form = form or (format_of(target) if target is not None else FileFormat.archive)
    except ExportError as error:
        raise WrongUsage.of(error) from None
    if not anonymize and (keep_nodes or pseudonyms):
        raise WrongUsage("--keep-nodes and --pseudonyms are for --anonymize", code="usage.conflict")
    if str(pseudonyms) == "-":
        raise WrongUsage("--pseudonyms needs a file of its own, which only you can read", code="usage.conflict")
    if with_progress and (form is not FileFormat.archive or anonymize or user or str(target) == "-"):
        raise WrongUsage(
            "--progress is for an archive in a file of its own, and goes with --app, --since and --until alone",
            code="usage.conflict",
        )
    selection = Selection(
        since=parse_moment(since), until=parse_moment(until), apps=tuple(app or ()), users=tuple(user or ())
    )

    from replay.export.export import export
    from replay.export.progress import export_progress

    async with log_of(file, cx, folds=False, salvages=salvage) as log:
        path = target or Path(f"{cx.target().cluster if file is None else file.stem + '-copy'}.dorm")
        source, chosen = log, selection
        if anonymize:
            path = target or Path("anonymized.dorm")
            source = made = await _anonymized(log, keep_nodes, pseudonyms, force=force)
            chosen = await made.selection_of(selection)
        with progress_of("exporting") as report:
            done = await export(source, path, selection=chosen, form=form, force=force, progress=report)
        if with_progress:
            beside, reports = await export_progress(log, path, chosen, force=force)
    _show(done, output)
    if with_progress and output not in (Format.json, Format.yaml):
        console.print(Text(f"{reports:,} reports of progress are in {beside}"), soft_wrap=True)
    if selection.some and not (done.records if done.rows is None else done.rows):
        report_nothing_found(done.first, done.last, app=selection.apps, user=selection.users)


async def _anonymized(log: ReadableLog, keep_nodes: bool, key: Path | None, *, force: bool) -> AnonymizedLog:
    """Return the log under pseudonyms; the mapping goes into a file that only this user can read."""
    from replay.export.anonymize import anonymized
    from replay.whole_file import whole_file

    with progress_of("collecting names") as report:
        made = await anonymized(log, keep_nodes=keep_nodes, progress=report)
    if key is not None:
        async with whole_file(key, force=force) as written:
            text = json.dumps(made.pseudonyms, indent=1, ensure_ascii=False)
            await asyncio.to_thread(_write_secret, written, text)
    return made


def _write_secret(file: BinaryIO, text: str) -> None:
    os.fchmod(file.fileno(), 0o600)
    file.write(text.encode() + b"\n")


def _show(done: Exported, output: Format) -> None:
    piped = done.file == "-"
    if output in (Format.json, Format.yaml) and not piped:
        show_document(done, output)
        return
    what = f"{done.records:,} records" if done.rows is None else f"{done.rows:,} events of {done.records:,} records"
    if done.last - done.first + 1 > done.records:
        what += f" (of {done.first} to {done.last})"
    text = f"{what} are in {'standard output' if piped else f'{done.file} ({done.bytes:,} bytes)'}"
    if piped:
        # Standard output is the file.
        if sys.stderr.isatty():
            progress_console.print(Text(text), soft_wrap=True)
    else:
        console.print(Text(text), soft_wrap=True)


@command(before="cluster")
async def import_log(
    cx: Cluster,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to read, or - for standard input.")],
    damaged: Annotated[bool, typer.Option("--damaged", help="Import what precedes the damage in a damaged archive.")] = False,
    without_files: Annotated[bool, typer.Option("--without-files", help="Do not import the shipped folders next to a backup.")] = False,
    output: Output = Format.table,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", envvar="DORM_CLUSTER", help="Name of the new cluster; default: its name in the archive.")] = None,
) -> None:  # fmt: skip
    """Import an archive as the log of a new cluster on a NATS server, after a loss or to inspect it with every live
    tool.

    The new log has the same records at the same sequences, with their times, and
    gives the same state, which is checked. Seals are valid only under the old
    name. To continue an interrupted import, run the command again.

    [bold]Examples[/]

      dorm replay import backup.dorm --url nats://10.0.0.5:4222

      dorm replay import incident.dorm --cluster incident
    """

    async with log_of(file, cx) as log:
        if await log.torn() and not damaged:
            raise Fail("nothing was imported; --damaged imports what comes before the damage", code="archive.damaged")
        done = await _import(log, _server(cx), cx._replace(cluster=cluster))
        shipped = (
            None
            if without_files or str(file) == "-"
            else await _shipped(log, file, cx._replace(url=done["url"], cluster=done["cluster"]))
        )
    if output in (Format.json, Format.yaml):
        show_document(done, output)
        return
    text = f"{done['records']:,} records are the log of cluster {done['cluster']} at {done['url']}; digest {done['digest']}"
    console.print(Text(text), soft_wrap=True)
    if shipped is not None:
        console.print(Text(f"{counted(shipped.parts, 'part')} of shipped folders are in its store"))
    console.print(
        Text(f"next: dorm master --cluster {done['cluster']} --url {done['url']}", style="dim"), soft_wrap=True
    )


async def _shipped(log: ReadableLog, file: Path, imported: Cluster) -> Copied | None:
    """Put the shipped folders that lie beside a backup into the store of the new cluster."""
    from dorm.deploy.folders import restore_folders
    from replay.reading import cluster_name

    with progress_of("restoring folders") as report:
        async with imported.client() as connected:
            return await restore_folders(connected.log.files, file, await cluster_name(log), report)


def _server(cx: Cluster) -> str:
    """Return the address of the server to import into.  Raises Fail for a cluster that authenticates its users."""
    from events.addresses import shown

    found = cx.target()
    if found.credentials:
        raise Fail(
            f"the NATS server at {shown(found.url)} knows its users, and takes no other cluster's log: name a server without "
            "accounts with --url, such as that of `dorm up --open`; to restore a cluster that knows its users, restore the "
            "data of its NATS server",
            code="import.known_cluster",
        )
    return found.url


async def _import(log: ReadableLog, url: str, cx: Cluster) -> dict[str, Any]:
    """Import the log; return the result.  Raises Fail if the new log gives another state."""
    from dorm.core.state import digest
    from events.addresses import shown
    from events.nats.importing import import_log as put
    from replay.frames import leave_snapshot
    from replay.reading import cluster_name
    from replay.travel.travel import state_at

    name = cx.cluster or await cluster_name(log)
    if not name:
        raise Fail("the archive is empty and names no cluster; name one with --cluster", code="cluster.not_named")
    try:
        with progress_of("importing") as report:
            done = await put(log, url, name, progress=report)
    except asyncio.CancelledError:
        complain("interrupted; what is stored stays, and the same command continues from there", "interrupted")
        raise
    async with cx._replace(url=url, cluster=name).client() as connected:
        with progress_of("checking") as report:
            found = digest(await leave_snapshot(connected.log, report))
        wanted = digest(await state_at(log))
        if found != wanted:
            raise Fail(
                f"the records of cluster {name} at {shown(url)} give the state {found}, and the archive says {wanted}; its "
                "snapshots may not be of its records, which `dorm replay verify` checks",
                code="import.differs",
            )
    return {"cluster": name, "url": shown(url), "records": done.records, "stored_before": done.before, "digest": found}
