"""Commands about apps: submit, ps, update, cancel, kill."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.authoring.fields import ShowIgnored, tell_findings
from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import Format, Output, console, counted, progress_console, show, show_document
from dorm.cli.swept.lines import NamesArgument
from dorm.cli.tables import show_apps, show_pause
from dorm.cli.terminal import in_shell, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.core.query.views import AppRow
    from dorm.core.state import App
    from events.spec import CheckedSpec

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
    from dorm.cli.apps.waiting import reporting_missing_master
    from dorm.cli.project.shipping import show_left_out, with_workdir
    from dorm.core.query.views import app_row
    from dorm.local.commands import with_shell_python
    from dorm.local.spec_files import load_spec
    from events.spec import document_of
    from events.spec.gates import in_order

    changes: dict[str, Any] = {**({"name": name} if name else {}), **({"hold": True} if hold else {})}
    checked = [load_spec(spec, changes, note=lambda text: progress_console.print(Text(text))) for spec in specs]
    files = [(checked[index], specs[index]) for index in in_order(checked)]
    for one, file in files:
        _hint(one, file)
        tell_findings(one)
    if dry_run:
        for one, file in files if show_ignored else ():
            show_left_out(one, file.absolute().parent)
        documents = [document_of(one) for one, _ in files]
        kind = Format.json if output is Format.json else Format.yaml
        for one, _ in files if kind is Format.yaml else ():
            say(f"# {one.name} runs: {in_shell(one.command)}")
        show_document(documents[0] if len(documents) == 1 else documents, kind)
        return

    async with cx.client() as connected:
        apps, nodes = [], (await connected.state()).nodes.values()
        for one, file in files:
            spec = await asyncio.to_thread(with_shell_python, one, nodes, cx.target().url)
            spec = await with_workdir(connected, spec, file.absolute().parent, show_ignored=show_ignored)
            app = await _submit(connected, spec, file, id)
            apps.append((app, _folder_of(one, file)))
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
    from dorm.cli.project.shipping import missing_in
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
    from dorm.cli.swept.lines import grouped
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

    from dorm.core.apps.resizable import undone_s
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

    from dorm.cli.apps.waiting import reporting_missing_master

    async with cx.client() as connected:
        asked = await connected.cancel(app, reason)
        if wait:
            async with reporting_missing_master(connected):
                ended = await connected.wait(asked.id, stopped=True)
            if ended.ended != "cancelled":
                raise Fail(f"{asked.name} {ended.ended} before it was cancelled", code=f"app.{ended.ended}")
            console.print(Text(f"{asked.name} is cancelled"))
        else:
            console.print(Text(f"{asked.name}: asked to stop"))


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

    from dorm.cli.apps.waiting import reporting_missing_master

    async with cx.client() as connected:
        asked = await connected.cancel(app, reason, kill=True)
        if wait:
            async with reporting_missing_master(connected):
                await connected.wait(asked.id, stopped=True)
            console.print(Text(f"{asked.name} is stopped"))
        else:
            console.print(Text(f"{asked.name}: kill requested"))
