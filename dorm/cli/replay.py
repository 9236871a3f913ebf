"""`dorm replay`: the log's past, of a live cluster or of an exported file.

`verify` repeats decisions, `export` and `import` make a file of a log and a log of a file, `open` serves the dashboard of a
file, `page` and `timeline` draw a log, `step` walks through it, and `bisect` finds the record that made an outcome
inevitable.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command, standalone
from dorm.cli.connect import Cluster, complete, complete_app, complete_node
from dorm.cli.errors import USAGE, Fail, WrongUsage, report_error
from dorm.cli.log import Expect, Jobs, Keys, check_expected, check_keys, jobs_of, show_audit
from dorm.cli.output import (
    Format,
    Output,
    console,
    counted,
    progress_console,
    show,
    show_document,
    solver_prints_elsewhere,
)
from dorm.cli.serve import address_of
from dorm.cli.signals import run_until_stopped
from dorm.cli.source import At, File, log_of, parse_at, parse_moment, progress_of, report_nothing_found
from dorm.cli.states import state
from replay.export.export import format_of
from replay.export.sink import FileFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.deploy.backups import Copied
    from events.log.interface import ReadableLog
    from events.positions import Logged
    from replay.bisect import Bisected
    from replay.export.anonymize import AnonymizedLog
    from replay.export.export import Exported
    from replay.moments import Moment
    from replay.story.chapters import Chapter
    from replay.timeline.model import Timeline
    from replay.travel.stepper import Stepper


# --- verify -----------------------------------------------------------------------------------------------------------

app = typer.Typer(
    help="Inspect the log's past: the state at any moment, an audit of every decision, a copy in a file.",
    no_args_is_help=True,
)
app.command(help="The same as `dorm state`.")(state)


@app.command()
@command()
async def verify(
    cx: Cluster,
    file: File = None,
    jobs: Jobs = None,
    key: Keys = None,
    expect: Expect = None,
    output: Output = Format.table,
) -> None:
    """Fold the log and repeat every decision; exit with 1 at the first divergence.

    The command also checks the log's seals (`dorm log verify`), its snapshots,
    and the state's invariants after every event. Decisions by a policy, solver or
    build that is not installed count as not checked.

    [bold]Examples[/]

      dorm replay verify

      dorm replay verify --file incident.dorm --jobs 1 -o json
    """
    keys, expected = check_keys(key), check_expected(expect)

    from replay.audit.audit import verify as audit

    async with log_of(file, cx, tells_damage=True) as log:
        with progress_of("auditing") as report, solver_prints_elsewhere():
            audited = await audit(log, jobs=jobs_of(jobs), keys=keys, expected=expected, progress=report)
    show_audit(audited, output)


# --- export and import ------------------------------------------------------------------------------------------------

_MOMENT = "SEQ|TIME|-10m"


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.user for app in state.apps.values()])


@app.command("export")
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
            progress_file, reports = await export_progress(log, path, chosen, force=force)
    _show(done, output)
    if with_progress and output not in (Format.json, Format.yaml):
        console.print(Text(f"{reports:,} reports of progress are in {progress_file}"), soft_wrap=True)
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


@app.command("import")
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
    from dorm.deploy.backups import restore_folders
    from replay.reading import cluster_name

    with progress_of("restoring folders") as report:
        async with imported.client() as connected:
            return await restore_folders(connected.log.files, file, await cluster_name(log), report)


def _server(cx: Cluster) -> str:
    """Return the address of the server to import into.  Raises Fail for a cluster that authenticates its users."""
    from events.addresses import shown

    target = cx.target()
    if target.credentials:
        raise Fail(
            f"the NATS server at {shown(target.url)} knows its users, and takes no other cluster's log: name a server without "
            "accounts with --url, such as that of `dorm up --open`; to restore a cluster that knows its users, restore the "
            "data of its NATS server",
            code="import.known_cluster",
        )
    return target.url


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
        report_error("interrupted; what is stored stays, and the same command continues from there", "interrupted")
        raise
    async with cx._replace(url=url, cluster=name).client() as connected:
        with progress_of("checking") as report:
            actual = digest(await leave_snapshot(connected.log, report))
        wanted = digest(await state_at(log))
        if actual != wanted:
            raise Fail(
                f"the records of cluster {name} at {shown(url)} give the state {actual}, and the archive says {wanted}; its "
                "snapshots may not be of its records, which `dorm replay verify` checks",
                code="import.differs",
            )
    return {"cluster": name, "url": shown(url), "records": done.records, "stored_before": done.before, "digest": actual}


# --- open -------------------------------------------------------------------------------------------------------------


@app.command("open")
@standalone
async def open_archive(
    file: Annotated[Path, typer.Argument(metavar="LOG.dorm", help="An exported log.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Address to listen on; port 0 takes any free one.")
    ] = "127.0.0.1:0",
) -> None:
    """Serve an exported log on this machine as if its cluster existed.

    The dashboard shows any moment of the log, and the API answers every question
    about it, including what-if questions. Requests that would change something
    are refused. The command ends on Ctrl-C.

    [bold]Examples[/]

      dorm replay open incident.dorm

      dorm replay open incident.dorm --listen 127.0.0.1:4280
    """
    from dorm.api.options import Options

    host, port = address_of(listen)
    options = Options(host=host, port=port, archive=file.stem)

    async def work() -> None:
        from dorm.api.clusters import ArchivedCluster
        from dorm.api.serving import serving

        async with log_of(file, Cluster()) as log, serving(ArchivedCluster(log), options) as server:
            console.print(Text(f"{file} is at {server.url}; Ctrl-C ends it"), soft_wrap=True)
            await server.run()

    await run_until_stopped(work())


# --- page -------------------------------------------------------------------------------------------------------------

PAGES = (".html", ".htm")


def _page_file(path: Path) -> Path:
    if str(path) != "-" and path.suffix.lower() not in PAGES:
        raise WrongUsage(f"{path}: name a file that ends in .html, or - for standard output", code="usage.file_name")
    return path


@app.command("page")
@command()
async def page(
    cx: Cluster,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", callback=_page_file, help="File to write, or - for standard output.")],
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Start at this moment: a sequence, a time, or a duration before the log's last record; " "default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="End at this moment; default: the log's end.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
) -> None:  # fmt: skip
    """Write the dashboard of a log as one file that needs no server and no network.

    The file shows the cluster at any moment of the log: nodes with their
    containers, partitions over time, every decision with its reasons, what
    happened to apps and nodes, and the log itself. Long logs are thinned out; the
    command and the page say what is omitted. The file contains names and messages
    of the log; to share it with outsiders, first make a log with `dorm replay
    export --anonymize`.

    [bold]Examples[/]

      dorm replay page -o incident.html --since -2h

      dorm replay page -o incident.html --file incident.dorm
    """
    await write(output, parse_moment(since), parse_moment(until), force=force, file=file, cx=cx)


async def write(
    output: Path, since: Moment | None, until: Moment | None, *, force: bool, file: Path | None, cx: Cluster,
) -> None:  # fmt: skip
    """Write the page, and print its contents and omissions."""
    from dorm.web.offline import page as offline
    from replay.page.recording import record
    from replay.whole_file import in_thread, whole_file

    name = cx.target().cluster if file is None else "a log" if str(file) == "-" else file.stem
    async with log_of(file, cx) as log, whole_file(output, force=force) as target:
        with progress_of("folding") as report:
            recording = await record(log, name, since, until, progress=report)
        written = await asyncio.to_thread(lambda: offline(msgspec.json.encode(recording), name).encode())
        await in_thread(target.write, written)
    for note in recording.notes:
        progress_console.print(note, markup=False)
    if str(output) != "-":
        console.print(
            f"{counted(len(recording.timeline.apps), 'app')}, {counted(len(recording.changes), 'moment')} and "
            f"{counted(len(recording.timeline.decisions), 'decision')} are in {output} ({len(written):,} bytes)",
            markup=False,
        )


# --- timeline ---------------------------------------------------------------------------------------------------------

_NEEDS = {**dict.fromkeys(PAGES, ""), ".png": "matplotlib", ".json": ""}
"""Package of an extra that draws a file, by the file's extension."""


def _timeline_file(path: Path) -> Path:
    if str(path) != "-" and path.suffix.lower() not in _NEEDS:
        raise WrongUsage(
            f"{path}: name a file that ends in .html, .png or .json, or - for JSON on standard output",
            code="usage.file_name",
        )
    return path


@app.command("timeline")
@command()
async def timeline(
    cx: Cluster,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", callback=_timeline_file, help="File to write: .html (a page), .png (a picture), .json (a trace for ui.perfetto.dev); - " "prints the JSON to standard output.")],
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Start at this moment: a sequence, a time, or a duration before the log's last record; " "default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="End at this moment; default: the log's end.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only this app (name or id) and its nodes; may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Only this node and its apps; may be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
) -> None:  # fmt: skip
    """Draw what happened: partitions over time, adjustments, failures, decisions with their reasons.

    The page is that of `dorm replay page`: one file with the dashboard of every
    moment. The JSON opens in ui.perfetto.dev.

    [bold]Examples[/]

      dorm replay timeline -o incident.html --since -2h

      dorm replay timeline -o report.png --file incident.dorm --app digits-mlp

      dorm replay timeline -o trace.json --since 2026-11-21T09:00 --until 2026-11-21T10:00
    """
    begin, end = parse_moment(since), parse_moment(until)
    if output.suffix.lower() in PAGES:
        if app or node:
            raise WrongUsage(
                "a page shows all apps and nodes, and finds them by name; leave out --app and --node, or write a .png",
                code="usage.conflict",
            )
        await write(output, begin, end, force=force, file=file, cx=cx)
        return

    from replay.timeline.fold import timeline as fold
    from replay.timeline.model import need, only
    from replay.whole_file import in_thread, whole_file

    name = cx.target().cluster if file is None else "a log" if str(file) == "-" else file.stem
    title = f"dorm · {name}"
    async with log_of(file, cx) as log:
        need(_NEEDS.get(output.suffix.lower(), ""))
        async with whole_file(output, force=force) as target:
            with progress_of("folding") as report:
                picture = await fold(log, begin, end, names=app or (), progress=report)
            picture = only(picture, app or (), node or ())
            drawn = await asyncio.to_thread(_draw, picture, output.suffix.lower(), title)
            await in_thread(target.write, drawn)
    if str(output) != "-":
        console.print(f"{counted(len(picture.apps), 'app')}, {counted(len(picture.nodes), 'node')} and "
                      f"{counted(len(picture.decisions), 'decision')} "
                      f"are in {output} ({len(drawn):,} bytes)", markup=False)  # fmt: skip
    elif progress_console.is_terminal:
        progress_console.print("open it at https://ui.perfetto.dev", markup=False)


def _draw(picture: Timeline, ending: str, title: str) -> bytes:
    """Return the whole file.  The drawing library is imported only now."""
    if ending == ".png":
        from replay.timeline.png import png

        return png(picture, title)
    from replay.timeline.trace import trace

    return trace(picture, title).encode("utf-8", "replace")


# --- step -------------------------------------------------------------------------------------------------------------


@app.command("step")
@command()
async def step(
    cx: Cluster,
    at: At = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow the log as it grows; while the cursor is at the end, it moves along.")] = False,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Stop only at events about this app (name or id); may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Stop only at events about this node; may be repeated.")] = None,
    file: File = None,
) -> None:  # fmt: skip
    """Step through the log event by event, forward and back, with the state after each.

    The arrows, PgUp and PgDn step; d and f find the next decision and failure, /
    filters events, g goes to a sequence or a time, and ? shows all keys. Times
    are UTC.

    [bold]Examples[/]

      dorm replay step --at -10m

      dorm replay step --file incident.dorm --app digits-mlp

      dorm replay step --follow
    """
    if follow and file is not None:
        raise WrongUsage("--follow needs a cluster: a file does not grow", code="usage.conflict")
    moment = parse_at(at)
    _check_terminal()

    from dorm.cli.step_screen import StepApp
    from replay.travel.search import Search

    search = Search(apps=tuple(app or ()), nodes=tuple(node or ()))
    name = cx.target().cluster if file is None else file.stem
    async with log_of(file, cx) as log:
        stepper = await _opened(log, "*" if file is not None else name, moment)
        screen = StepApp(log, stepper, name, search, follow=follow)
        with _ended_by(screen.exit):
            await screen.run_async()
    if code := screen.return_code or 0:
        raise typer.Exit(code)


async def _opened(log: ReadableLog, cluster: str, moment: Moment | None) -> Stepper:
    """Return a stepper at a moment."""
    from replay.travel.stepper import Stepper

    stepper = await Stepper.open(log, cluster=cluster)
    with progress_of("folding") as report:
        await stepper.go(moment, report)
    return stepper


@contextlib.contextmanager
def _ended_by(leave: Callable[[], None]) -> Iterator[None]:
    """Restore the terminal when the process is ended or its terminal is closed."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _in_terminal() -> bool:
    # What draws the screen writes it to standard error, and reads keys from standard input.
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _check_terminal() -> None:
    """Raises Fail without an interactive terminal, or if the library that draws is not installed."""
    if not _in_terminal():
        raise Fail(
            "stepping needs a terminal; in a pipe, `dorm state --at` has the state at any moment and `dorm events` what "
            "happened",
            USAGE,
            code="usage.no_terminal",
        )
    if find_spec("textual") is None:
        raise Fail("stepping needs textual: pip install 'dorm[tui]'", code="package.missing")


# --- bisect -----------------------------------------------------------------------------------------------------------

_CHAPTERS = 4
"""Chapters of an app's story that are shown, up to the record."""


@app.command("bisect")
@command()
async def bisect(
    cx: Cluster,
    outcome: Annotated[
        str, typer.Argument(metavar="OUTCOME", help="The outcome, such as 'digits completed before 10:00'.")
    ],
    policies: Annotated[
        list[str],
        typer.Option(
            "--policies", metavar="POLICY,…",
            help="Policies under which the outcome has to hold, with optional parameters: " "dorm,theta2=0.3,static.",
        ),
    ],
    tries: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Simulate at most this many continuations of the log.")
    ] = 60,
    file: File = None,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Find the first record after which an outcome held under every policy: when did it become inevitable?

    At each tried moment, the log is continued in the simulator once for each
    policy, as by `dorm whatif`: later events that are not decisions are repeated,
    apps have the work that they turned out to have, and the policy makes every
    decision. The outcome holds at a moment if it holds in all continuations.

    OUTCOME is one of these, or several with and, or, not and parentheses:

      APP completed|failed|cancelled|ended|started before|after TIME

      APP waiting|running at TIME

      APP has (at least|at most|exactly) N containers at TIME

      utilization|fairness loss|running apps|waiting apps
      above|below|at least|at most NUMBER at TIME

    TIME is 10:00 or 10:00:30 (UTC, on the day on which the log ends),
    2026-11-21T10:00, -10m (before the log's end) or +2h (after it).

    The command first scans the log coarsely, then uses a binary search, which is
    correct only if an inevitable outcome stays inevitable. If the outcome did not
    hold at a later moment, the output says so, and the record found is the last
    one that made it inevitable. A short lapse between two tried moments goes
    unnoticed; --tries makes the scan finer.

    JSON: inevitable (the record's sequence; null: never; 0: from the start),
    after (the last moment that did not hold), exact, monotone, really (what the
    log itself says), moments (seq, at, verdicts by policy), tries, guesses (apps
    whose work or speed is one), record (events of that record) and story
    (chapters of the apps up to it). Times are UTC nanoseconds.

    [bold]Examples[/]

      dorm replay bisect 'digits completed before 10:00' --policies dorm,static

      dorm replay bisect 'not (digits completed before -1h)' --policies dorm --file incident.dorm

      dorm replay bisect 'utilization above 80% at -10m and waiting apps at most 2 at -10m' --policies dorm,tiresias -o json
    """

    from replay.bisect import bisect as bisected
    from replay.simulator.contenders import split_all

    chosen = split_all(policies)
    async with log_of(file, cx) as log:
        with progress_of("reading") as reading, progress_of("simulating") as trying, solver_prints_elsewhere():
            result = await bisected(log, outcome, chosen, tries=tries, reading=reading, trying=trying)
        record = await _record(log, result)
        story = await _story(log, result)
    if output in (Format.json, Format.yaml):
        show_document(_bisect_document(result, record, story), output)
    else:
        _show_bisect(result, record, story)


async def _record(log: ReadableLog, bisected: Bisected) -> list[Logged]:
    from events.positions import logged

    record = await log.record_at(bisected.inevitable) if bisected.inevitable else None
    return list(logged(record)) if record is not None else []


async def _story(log: ReadableLog, bisected: Bisected) -> dict[str, list[Chapter]]:
    """Return the last chapters of each app that the outcome names, up to the record."""
    from replay.moments import AtSequence
    from replay.story.story import StoryError, tell

    stories = {}
    for name in bisected.apps if bisected.inevitable else ():
        try:
            story = await tell(log, name, AtSequence(bisected.inevitable or 0))
        except StoryError:
            continue  # It was submitted later.
        stories[name] = list(story.chapters)[-_CHAPTERS:]
    return stories


def _bisect_document(bisected: Bisected, record: list[Logged], story: dict[str, list[Chapter]]) -> dict[str, Any]:
    from dorm.cli.events import in_words

    lines = [
        {"position": str(event.position), "kind": type(event.event).__name__, "text": in_words(event.event)}
        for event in record
    ]
    return {**msgspec.structs.asdict(bisected), "record": lines, "story": story}


def _show_bisect(bisected: Bisected, record: list[Logged], story: dict[str, list[Chapter]]) -> None:
    from dorm.cli.events import in_words
    from dorm.cli.explain import show_chapters
    from replay.words import moment

    rows = [
        {
            "seq": tried.seq,
            "at": moment(tried.at) if tried.at else "-",
            **{policy: _word(held) for policy, held in tried.verdicts.items()},
            "by": "the log" if tried.recorded else "simulation",
        }
        for tried in bisected.moments
    ]
    columns = [("RECORD", "seq"), ("TIME", "at"), *((policy.upper(), policy) for policy in bisected.policies)]
    show(rows, [*columns, ("DECIDED BY", "by")], Format.table)
    console.print()
    for line in _verdict(bisected):
        console.print(Text(line))
    if record:
        console.print()
    for event in record:
        console.print(Text(f"{event.position!s:>8}  {type(event.event).__name__:<21}{in_words(event.event)}"))
    for name, chapters in story.items():
        console.print(Text(f"\n{name}", style="bold"))
        show_chapters(chapters)


def _verdict(bisected: Bisected) -> list[str]:
    from replay.words import moment

    really = {True: "it did", False: "it did not", None: "the log ends before that is decided"}[bisected.really]
    lines = [f"{bisected.outcome}: {really}"]
    if bisected.inevitable is None:
        broken = [policy for policy, held in bisected.moments[-1].verdicts.items() if not held]
        lines.append(f"it was never inevitable: at the log's end it does not hold under {', '.join(broken)}")
    elif bisected.after is None:
        lines.append("it was inevitable from the start of the log")
    elif bisected.exact:
        lines.append(f"record {bisected.inevitable} of {moment(bisected.inevitable_at or 0)} made it inevitable")
    else:
        lines.append(
            f"it became inevitable after record {bisected.after}, and by record {bisected.inevitable}; more --tries say when"
        )
    if not bisected.monotone:
        lines.append("it is not monotone: an earlier moment held, and a later one did not")
    if bisected.guesses:
        lines.append(f"the work or the speed of {', '.join(bisected.guesses[:5])} is a guess, so this may be off")
    lines.append(f"{counted(bisected.tries, 'continuation')} simulated")
    return lines


def _word(held: bool) -> str:
    return "holds" if held else "does not"
