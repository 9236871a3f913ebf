"""Commands about single apps: `dorm submit`, `ps`, `describe`, `logs`, `update`, `cancel`, `kill`."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster, complete_app_or_node
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.fields import ShowIgnored, print_findings
from dorm.cli.output import Format, Output, console, counted, progress_console, show, show_document
from dorm.cli.source import clock_time
from dorm.cli.tables import NamesArgument, show_app, show_apps, show_node, show_pause
from dorm.cli.terminal import in_shell, print_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.client.client import Client
    from dorm.client.output import Line, Ran
    from dorm.client.output import Output as AppOutput
    from dorm.core.query.views import AppRow
    from dorm.core.state import App
    from events.spec import CheckedSpec


# --- submit, ps, update, cancel, kill ---------------------------------------------------------------------------------

_DOCUMENTS = (Format.json, Format.yaml)


@command(user=True)
async def submit(
    cx: Cluster,
    specs: Annotated[
        list[Path],
        typer.Argument(metavar="SPEC...", help="Spec files, YAML or TOML; - reads YAML from standard input."),
    ],
    name: Annotated[str | None, typer.Option(help="Use this name instead of the file's.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until each app has ended; exit with 1 unless all completed.")
    ] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Hold the app from the start, until `dorm release`.")] = False,
    id: Annotated[
        str | None, typer.Option("--id", help="Id of the submission; a repeat with the same id is the same app.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the spec, print what would be sent, and stop.")
    ] = False,
    show_ignored: ShowIgnored = False,
    output: Output = Format.table,
) -> None:
    """Submit one or more apps.

    Apps are submitted in the order of their dependencies (`after` in a spec). The
    first refusal ends the command; apps that precede it are submitted.

    [bold]Examples[/]

      dorm submit app.yaml

      dorm submit app.yaml --name second --wait

      dorm submit app.yaml --dry-run --show-ignored

      dorm submit app.yaml --hold && dorm release app

      dorm submit train.yaml prep.yaml

      sed s/lr=1/lr=2/ app.yaml | dorm submit -
    """
    if len(specs) > 1 and (name is not None or id is not None):
        raise WrongUsage("--name and --id are for one spec; submit one file at a time", code="usage.conflict")
    from dorm.cli.project import show_left_out, with_workdir
    from dorm.cli.wait import reporting_missing_master
    from dorm.core.query.views import app_row
    from dorm.local.commands import with_shell_python
    from dorm.local.spec_files import load_spec
    from events.spec import document_of
    from events.spec.gates import in_order

    changes: dict[str, Any] = {**({"name": name} if name else {}), **({"hold": True} if hold else {})}
    checked = [load_spec(spec, changes, note=lambda text: progress_console.print(Text(text))) for spec in specs]
    files = [(checked[index], specs[index]) for index in in_order(checked)]
    for parsed, file in files:
        _hint(parsed, file)
        print_findings(parsed)
    if dry_run:
        for parsed, file in files if show_ignored else ():
            show_left_out(parsed, file.absolute().parent)
        documents = [document_of(parsed) for parsed, _ in files]
        kind = Format.json if output is Format.json else Format.yaml
        for parsed, _ in files if kind is Format.yaml else ():
            print_line(f"# {parsed.name} runs: {in_shell(parsed.command)}")
        show_document(documents[0] if len(documents) == 1 else documents, kind)
        return

    async with cx.client() as connected:
        apps, nodes = [], (await connected.state()).nodes.values()
        for parsed, file in files:
            spec = await asyncio.to_thread(with_shell_python, parsed, nodes, cx.target().url)
            spec = await with_workdir(connected, spec, file.absolute().parent, show_ignored=show_ignored)
            app = await _submit(connected, spec, file, id)
            apps.append((app, _folder_of(parsed, file)))
            if output not in (Format.json, Format.yaml) and not wait:
                console.print(Text(f"{app.name} is accepted as {app.id}; watch it with `dorm describe {app.name}`"))
        rows = [app_row(app, time.time_ns()) for app, _ in apps]
        if output in (Format.json, Format.yaml) and not wait:
            show_document(rows[0], output) if len(rows) == 1 else show(rows, [], output)
        if wait:
            async with reporting_missing_master(connected):
                await _wait_for_all(connected, apps, output)


def _hint(checked: CheckedSpec, file: Path) -> None:
    """Say so if the program lies beside the spec, and nothing brings it to the nodes."""
    from dorm.local.scripts import unshipped

    if checked.workdir or not file.is_file():
        return
    if script := unshipped(checked.command, file.absolute().parent):
        unless = ", unless the image has it" if checked.image else ""
        text = f"{script} is beside {file.name}, and nothing brings it to the nodes{unless}; `workdir: .` would"
        progress_console.print(Text(f"{checked.name}: {text}"))


def _folder_of(checked: CheckedSpec, file: Path) -> Path | None:
    """Return the folder that a spec ships, None if it ships none."""
    return file.absolute().parent / checked.workdir if isinstance(checked.workdir, str) else None


async def _wait_for_all(connected: Client, apps: Sequence[tuple[App, Path | None]], output: Format) -> None:
    """Wait for each, even if one before it failed.  Raises Fail for the first that did not complete."""
    failed: Fail | None = None
    for app, folder in apps:
        try:
            await _wait(connected, app, folder, output)
        except Fail as error:
            failed = failed or error
    if failed is not None:
        raise failed


async def _submit(connected: Client, checked: CheckedSpec, file: Path, id: str | None) -> App:
    from dorm.client.errors import Unsettled

    try:
        return await connected.submit(checked, id=id)
    except Unsettled as error:
        again = f"`dorm submit {shlex.quote(str(file))} --id {error.id}`"
        raise Fail(f"{error}: {again}", code=error.code) from None


async def _wait(connected: Client, submitted: App, folder: Path | None, output: Format) -> None:
    """Show the app's progress until it ends.  `folder`: what was shipped for it."""
    from dorm.cli.project import missing_in
    from dorm.core.query.views import app_row

    shown = ""
    with progress_console.status(f"{submitted.name}: {submitted.phase}") as status:
        async for state, _ in connected.watch():
            app = state.apps.get(submitted.id)
            if app is None:
                continue
            row = app_row(app, time.time_ns())
            line = f"{app.name}: {row.phase}, {counted(row.containers, 'container')}, step {row.step}"
            if line != shown:
                shown = line
                status.update(Text(line))
            if app.ended:
                if output in (Format.json, Format.yaml):
                    show_document(row, output)
                else:
                    console.print(Text(_ending(app, row)))
                if app.ended != "completed":
                    missing = await missing_in(app, folder) if folder is not None else ""
                    raise Fail(
                        f"{app.name} {app.ended}"
                        + (f": {app.end_reason}" if app.end_reason else "")
                        + (f"; {missing}" if missing else ""),
                        code=f"app.{app.ended}",
                    )
                return


def _ending(app: App, row: AppRow) -> str:
    """Return `digits completed after 12.0 s: step 400, loss 0.31, 2 adjustments`, without figures that it never
    reported."""
    loss = row.loss_is or (f"{row.loss:.6g}" if row.loss is not None else "")
    step = f"step {row.step}" if app.reports_progress or row.step else "no progress reported"
    parts = [step, *([f"loss {loss}"] if loss else []), counted(app.adjustments, "adjustment")]
    return f"{app.name} {app.ended} after {row.age_s:.1f} s: {', '.join(parts)}"


@command()
async def ps(
    cx: Cluster,
    names: NamesArgument = None,
    all_apps: Annotated[
        bool,
        typer.Option("--all", "-a", help="Include ended apps that the cluster still keeps, and each app of a sweep."),
    ] = False,
    output: Output = Format.table,
) -> None:
    """List apps: how many containers each has, and why not more.

    A sweep takes one line; name it to list its apps. Named apps are listed even if
    they have ended.

    [bold]Examples[/]

      dorm ps

      dorm ps --all -o wide

      dorm ps digits-mlp

      dorm ps lr

      dorm ps -o json | jq '.[] | select(.phase == "waiting") | .note'
    """
    from dorm.cli.tables import grouped
    from dorm.core.query.views import app_rows

    async with cx.client() as connected:
        state = await connected.state()
        rows = app_rows(state, time.time_ns(), ended=all_apps, newest=await connected.reported())
        rows, sweeps = grouped(state, rows, names or [], connected.user, each=all_apps or output in _DOCUMENTS)
        if output in _DOCUMENTS:
            show(rows, [], output)
        elif rows or sweeps:
            show_apps(rows, output, sweeps)
        else:
            ended = sum(1 for app in state.apps.values() if app.ended)
            hint = (
                f"; `dorm ps --all` shows {ended} that ended" if ended else "; submit one with `dorm submit app.yaml`"
            )
            console.print(Text("no app is running or waiting" + hint))
        if output not in _DOCUMENTS:
            show_pause(state)


def undone_by_restart(app: App) -> str:
    """Return, as a sentence's end, that a restart of a running app undoes its work, and how much; "" if it undoes none."""
    import time

    from dorm.core.resizable import undone_s
    from replay.words import begins_again

    undone = undone_s(app, time.time_ns())
    return f"; it {begins_again(undone)}" if undone else ""


def undone_by_bounds(changed: App) -> str:
    """As `undone_by_restart`, for an app that is restarted because its containers do not fit its new bounds."""
    has = len(changed.current.containers) if changed.current is not None else 0
    return "" if changed.n_min <= has <= changed.n_max else undone_by_restart(changed)


@command(user=True)
async def update(
    cx: Cluster,
    app: AppName,
    weight: Annotated[float | None, typer.Option(min=0.001, max=1000, help="Its share relative to other apps.")] = None,
    n_min: Annotated[
        int | None, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option("--n-max", min=1, help="The largest number of containers that it can use.")
    ] = None,
) -> None:
    """Change the weight or the bounds of an app; the next decision applies them.

    [bold]Example[/]

      dorm update digits-mlp --weight 2 --n-max 8
    """
    if weight is None and n_min is None and n_max is None:
        raise WrongUsage("name a change: --weight, --n-min or --n-max", code="usage.nothing_to_do")

    async with cx.client() as connected:
        changed = await connected.update(app, weight=weight, n_min=n_min, n_max=n_max)
        bounds = f"n_min {changed.n_min}, n_max {changed.n_max}{undone_by_bounds(changed)}"
        console.print(Text(f"{changed.name}: weight {changed.weight:g}, {bounds}"))


@command(user=True)
async def cancel(
    cx: Cluster,
    app: AppName,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until it has ended and none of its containers run.")
    ] = False,
) -> None:
    """Stop an app permanently. Its checkpoint and logs stay for a while.

    [bold]Example[/]

      dorm cancel digits-mlp --reason "wrong learning rate"
    """

    from dorm.cli.wait import reporting_missing_master

    async with cx.client() as connected:
        cancelled = await connected.cancel(app, reason)
        if wait:
            async with reporting_missing_master(connected):
                ended = await connected.wait(cancelled.id, stopped=True)
            if ended.ended != "cancelled":
                raise Fail(f"{cancelled.name} {ended.ended} before it was cancelled", code=f"app.{ended.ended}")
            console.print(Text(f"{cancelled.name} is cancelled"))
        else:
            console.print(Text(f"{cancelled.name}: asked to stop"))


@command(user=True)
async def kill(
    cx: Cluster,
    app: AppName,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until none of its containers run.")] = False,
) -> None:
    """Stop an app immediately: no checkpoint, no grace time.

    A running app is cancelled. Containers of a cancelled or failed app that are
    still stopping are killed. Work after the last checkpoint is lost. A node that
    cannot be reached ends its containers when its lease expires.

    [bold]Examples[/]

      dorm kill digits-mlp --reason "ignores SIGTERM"

      dorm kill digits-mlp --wait
    """

    from dorm.cli.wait import reporting_missing_master

    async with cx.client() as connected:
        killed = await connected.cancel(app, reason, kill=True)
        if wait:
            async with reporting_missing_master(connected):
                await connected.wait(killed.id, stopped=True)
            console.print(Text(f"{killed.name} is stopped"))
        else:
            console.print(Text(f"{killed.name}: kill requested"))


# --- describe ---------------------------------------------------------------------------------------------------------


@command()
async def describe_app(
    cx: Cluster,
    name: Annotated[
        str,
        typer.Argument(
            metavar="APP|NODE", help="Name or id of the app, or name of the node.", autocompletion=complete_app_or_node
        ),
    ],
    output: Output = Format.table,
) -> None:
    """Describe one app: where its containers are, what its adjustments cost, how it ended, where it failed lately.

    Of a node: its resources and containers, which apps failed there lately, and
    why it is suspect, if it is. A name that an app and a node share is the app's.

    [bold]Examples[/]

      dorm describe digits-mlp

      dorm describe node-3
    """
    from dorm.client.finding import find_app
    from dorm.core.query.views import describe, describe_node

    async with cx.client() as connected:
        state = await connected.state()
        node = state.nodes.get(name)
        if node is not None and state.find_app(name) is None:
            of_node = describe_node(state, node, time.time_ns())
            if output in (Format.json, Format.yaml):
                show_document(of_node, output)
            else:
                show_node(of_node, output)
            return
        app = find_app(state, name, connected.user)
        document = describe(app, time.time_ns(), state, await connected.reported(app.id))
    if output in (Format.json, Format.yaml):
        show_document(document, output)
    else:
        show_app(document)


# --- logs -------------------------------------------------------------------------------------------------------------


class _Wanted(msgspec.Struct, frozen=True):
    """The part of each container's output that is printed."""

    follow: bool
    tail: int | None
    since: int | None
    times: bool
    grep: str

    def chunks(self, output: AppOutput, ran: Ran, slot: int) -> AsyncIterator[bytes]:
        from dorm.cli.attached import report_missed

        missed = partial(report_missed, ran.named(slot))
        return output.read_slot(ran, slot, follow=self.follow, tail=self.tail, since=self.since, missed=missed)

    def lines(self, output: AppOutput, ran: Ran, slot: int) -> AsyncIterator[Line]:
        from dorm.cli.attached import report_missed
        from dorm.client.output import lines, timed_lines

        if not self.times:
            return lines(self.chunks(output, ran, slot), bars=self.follow)
        missed = partial(report_missed, ran.named(slot))
        pieces = output.read_timed(ran, slot, follow=self.follow, tail=self.tail, since=self.since, missed=missed)
        return timed_lines(pieces, bars=self.follow)


@command()
async def logs(
    cx: Cluster,
    app: AppName,
    slot: Annotated[int | None, typer.Option(min=0, help="The container in this slot; default: the first slot.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="The container of this rank.")] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="All ranks; each line is prefixed with its rank.")] = False,
    generation: Annotated[
        int | None, typer.Option(min=1, help="The generation with this number; default: the latest that started.")
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="The generation before the latest.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME|-10m|SEQ", help="Only lines since this time: 14:05 or 2026-11-21T09:00 (UTC), a duration ago (-10m), or " "the sequence of a record."),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Prefix each line with the time at which it was written (UTC).")] = False,
    grep: Annotated[str | None, typer.Option(metavar="TEXT", help="Only the lines that contain this text.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the container ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines of each container, before --grep applies.")] = None,
) -> None:  # fmt: skip
    """Print the output of an app's containers, also after the app has ended.

    A slot names a container for its whole life. Its rank (DORM_RANK) is the
    position of its slot among the app's slots. Both are the same number, unless a
    live-resized app loses a member: the ranks after it then move up. For an
    earlier generation, ranks count all slots that it had.

    Each resize, restart or failure begins a new generation. The output of earlier
    generations stays on the nodes as long as the cluster keeps ended apps.

    Times are those of the nodes' clocks: exact to the nanosecond in Docker, to
    about a second for plain processes, and less exact for old lines of plain
    processes. `-` stands for an unknown time; such lines pass --since. With
    --all, lines with times are sorted, unless you follow them.

    [bold]Examples[/]

      dorm logs digits-mlp

      dorm logs -f digits-mlp --slot 2 --tail 20

      dorm logs digits-mlp --all --grep loss

      dorm logs digits-mlp --all --timestamps --since -10m

      dorm logs digits-mlp --previous --rank 0
    """
    if sum((slot is not None, rank is not None, every)) > 1:
        raise WrongUsage("--slot, --rank and --all each say which containers; give one of them", code="usage.conflict")
    if generation is not None and previous:
        raise WrongUsage("--generation and --previous both name a generation; give one", code="usage.conflict")
    begin = clock_time(since)

    from dorm.cli.project import missing_in

    async with cx.client() as connected:
        output = connected.output
        ran = await output.generation(await connected.app(app), generation, previous=previous)
        wanted = _Wanted(follow, tail, await begin(connected.log), timestamps, grep or "")
        await _print(output, ran, None if every else ran.slot(slot=slot, rank=rank), wanted)
        if missing := await missing_in((ended := await connected.app(ran.app.id)), None):
            progress_console.print(Text(f"{ended.name} {ended.ended}: {missing}"), soft_wrap=True)


async def _print(output: AppOutput, ran: Ran, slot: int | None, wanted: _Wanted) -> None:
    """Print the output of one container, or of all."""
    from dorm.cli.attached import Printer, print_all, print_merged

    if slot is None:
        slots = sorted(ran.nodes)
        _check_count(slots, wanted)
        printer = Printer(len(slots), wanted.grep)
        outputs = [wanted.lines(output, ran, slot) for slot in slots]
        if wanted.times and not wanted.follow:
            await print_merged(printer, outputs)
        else:
            await print_all(printer, outputs, follow=wanted.follow)
    elif wanted.grep or wanted.times:
        await Printer(0, wanted.grep).print(wanted.lines(output, ran, slot), 0)
    else:
        async for chunk in wanted.chunks(output, ran, slot):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def _check_count(slots: Sequence[int], wanted: _Wanted) -> None:
    from dorm.cli.attached import MOST_FOLLOWED

    if not (wanted.follow or wanted.times) or len(slots) <= MOST_FOLLOWED:
        return
    does, option = ("follows", "--follow") if wanted.follow else ("merges", "--timestamps")
    raise Fail(
        f"--all {does} at most {MOST_FOLLOWED} containers, and there are {len(slots)}; name one with --rank, or leave out "
        f"{option}",
        code="logs.too_many",
    )
