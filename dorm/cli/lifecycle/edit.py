"""`dorm edit`: another spec for an app that exists."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.authoring.fields import ShowIgnored, complete_field, tell_findings
from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import Format, Output, console, counted, show_document, solver_prints_elsewhere

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.query.planning.planned import Plan, PlannedApp
    from dorm.core.state import App, State
    from events.spec import AppSpec
    from events.spec.editing import Changes

_LONGEST = 60
_MOST_SHOWN = 10


@command(user=True)
async def edit(
    cx: Cluster,
    app: AppName,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="SPEC", help="The new spec, YAML or TOML; - reads standard input."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete_field,
            help="Set a field: image=IMAGE, demand.cpu=2, env.LR=0.1; leave the value empty for the "
            "default. May be repeated.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    show_ignored: ShowIgnored = False,
    output: Output = Format.table,
) -> None:
    """Give an app another spec: from a file (-f), field by field (--set), or in your editor.

    The command first shows what would change, and which apps would be resized.
    Bounds, weight and limits apply immediately. All other fields (image, command,
    env, demand …) need a restart: a running app saves a checkpoint, stops, and
    resumes with the new spec. Gates (hold, after, start_after) and `from` can
    change until the app has started; its name and user never. A `workdir` in the
    file is shipped.

    If someone else has changed the spec since you read it, your edit is refused:
    repeat it on the current spec.

    [bold]Examples[/]

      dorm edit digits-mlp

      dorm edit digits-mlp --set weight=2 --set env.LR=0.05

      dorm edit digits-mlp -f new.yaml --dry-run

      dorm edit digits-mlp --set image=trainer:2 --yes

      dorm edit digits-mlp --set max_runtime=12h
    """
    if not (yes or dry_run) and (str(file) == "-" or not sys.stdin.isatty()):
        raise WrongUsage(
            "without a terminal, there is no confirmation; pass --yes, or --dry-run to see the changes first",
            code="usage.not_asked",
        )

    async with cx.client() as connected:
        await _edit(connected, app, file, change, yes=yes, dry_run=dry_run, show_ignored=show_ignored, output=output)


async def _edit(
    connected: Client,
    name: str,
    file: Path | None,
    pairs: list[str] | None,
    *,
    yes: bool,
    dry_run: bool,
    show_ignored: bool,
    output: Format,
) -> None:
    from dorm.client import steering
    from dorm.client.finding import find_app
    from dorm.core.apps.steering import check_editable
    from events.spec import SpecError
    from events.spec.editing import differing

    state = await connected.state()
    found = find_app(state, name, connected.user)
    try:
        check_editable(found)
    except SpecError as error:
        raise Fail(str(error), code=error.code) from None
    before = found.owners_spec
    after = await _asked(connected, found, file, pairs, send=not dry_run, show_ignored=show_ignored)
    changes = differing(before, after) if after is not None else None
    if after is None or changes is None or not changes.all:
        console.print(Text(f"nothing to change: {found.name} has this spec already"))
        return
    if not {"command", "resume", "checkpoint", "env"}.isdisjoint(changes.all):
        tell_findings(after)
    planned = _planned(state, found, after) if not found.ended else None
    if output in (Format.json, Format.yaml) and dry_run:
        show_document(_document(found, before, after, changes, planned), output)
    elif output not in (Format.json, Format.yaml):
        _show(found, before, after, changes, planned)
    if dry_run or not (yes or typer.confirm("change it?", default=False)):
        return
    edited = await steering.edit(connected, found.id, after, made_from=before)
    if output in (Format.json, Format.yaml):
        show_document(_document(edited, before, after, changes, planned), output)
    else:
        when = "; it restarts now" if edited.restart_wanted else ""
        when = f"; `dorm restart {edited.name}` starts it" if edited.ended else when
        console.print(Text(f"{edited.name} has revision {edited.revision}{when}"))


async def _asked(
    connected: Client, app: App, file: Path | None, pairs: list[str] | None, *, send: bool, show_ignored: bool
) -> AppSpec | None:
    """Return the spec that the user wants; None if an editor left it as it was.  A folder that it names is shipped with
    `send`, else only looked at."""
    from dorm.cli.lifecycle.editing import from_editor, from_file
    from dorm.cli.lifecycle.shipping import with_folder
    from dorm.core.apps.steering import spec_of
    from dorm.local.spec_settings import SettingRefused, with_settings
    from events.spec import document_of

    spec, base = app.owners_spec, Path() if file is None or str(file) == "-" else file.parent
    if file is None and not pairs:
        edited = await from_editor(spec, lambda document: spec_of(document, app))
        return (
            spec_of(await with_folder(connected, edited, app, base, send=send, show_ignored=show_ignored), app)
            if edited is not None
            else None
        )
    document: dict[str, Any] = from_file(file, spec) if file is not None else document_of(spec)
    try:
        document = with_settings(document, pairs or [])
    except SettingRefused as error:
        raise WrongUsage.of(error) from None
    return spec_of(await with_folder(connected, document, app, base, send=send, show_ignored=show_ignored), app)


def _planned(state: State, app: App, after: AppSpec) -> Plan | None:
    """Return the next decision with the edit.  Raises Fail if it would be refused."""
    from dorm.core.query.planning.assumed import Assumed, PlanError
    from dorm.core.query.planning.plans import plan

    try:
        with solver_prints_elsewhere():
            return plan(state, max(state.time, time.time_ns()), Assumed(edited=((app.id, after),)))
    except PlanError as error:
        raise Fail(str(error).removeprefix(f"{app.name}: "), code=error.code) from None


# --- what would change --------------------------------------------------------------------------------------------------


def _show(app: App, before: AppSpec, after: AppSpec, changes: Changes, planned: Plan | None) -> None:
    runs = app.current is not None and not app.ended
    for title, names in (
        ("at once", changes.at_once),
        ("by a restart" if runs else "when it starts", changes.by_restart),
    ):
        for name in names:
            shown = "from" if name == "origin" else name
            line = f"  {shown}: {_value(getattr(before, name))} -> {_value(getattr(after, name))}"
            console.print(Text(line).append(f"  ({title})", style="dim"))
    if planned is None:
        return
    disturbed = [one for one in planned.apps if one.kind]
    for one in disturbed[:_MOST_SHOWN]:
        console.print(Text(_in_words(one, own=one.id == app.id)))
    if len(disturbed) > _MOST_SHOWN:
        console.print(Text(f"and {counted(len(disturbed) - _MOST_SHOWN, 'more app')}; `--dry-run -o json` lists all"))
    if not disturbed:
        console.print(Text("no app is resized or restarted"))


def _in_words(one: PlannedApp, *, own: bool) -> str:
    from replay.words import begins_again

    size = (
        f"{one.before} -> {counted(one.after, 'container')}"
        if one.before != one.after
        else counted(one.after, "container")
    )
    pause = f"; its last pauses were about {one.adjust_s:.0f} s" if one.measured else "; its pause was never measured"
    lost = f"; it {begins_again(one.lost_s)}" if one.lost_s else ""
    if one.kind == "stop":
        why = f": {one.reason.text}" if one.reason is not None else ""
        return f"{one.name} is stopped{'' if lost else ' with a checkpoint'}, and waits{why}{lost}"
    if one.kind == "start":
        return f"{one.name} starts with {size}"
    if lost:
        return f"{one.name} is restarted: {size}{lost}"
    how = "is resized while it runs" if one.kind == "live" else "is checkpointed and restarted"
    return f"{one.name} {how}: {size}{pause}" if own or one.kind != "live" else f"{one.name} {how}: {size}"


def _value(value: Any) -> str:
    import msgspec

    from dorm.cli.terminal import one_line

    text = one_line(msgspec.json.encode(value).decode())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _document(app: App, before: AppSpec, after: AppSpec, changes: Changes, planned: Plan | None) -> dict[str, Any]:
    import msgspec

    from events.spec.editing import differences

    return {
        "app": app.id,
        "revision": app.revision,
        "at_once": differences(before, after, changes.at_once),
        "by_restart": differences(before, after, changes.by_restart),
        "plan": msgspec.to_builtins(planned) if planned is not None else None,
    }
