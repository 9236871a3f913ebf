"""Changing an app that is on the cluster: `dorm scale`, `edit`, `restart` and `retry`, `hold` and `release`.

Each sends one request, and prints what follows from it for the app; if a running app is restarted, also how much work that
undoes.  An edit starts from the spec as its owner wrote it: from a file (`-f`), from fields (`--set`), or from an editor,
which opens again with the reason as long as the result is refused.  A `workdir: .` is shipped before the edit is sent.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.apps import undone_by_bounds, undone_by_restart
from dorm.cli.command import command
from dorm.cli.connect import AppName, AppNames, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.fields import ShowIgnored, complete_field, print_findings
from dorm.cli.output import Format, Output, as_yaml, console, counted, show_document, solver_prints_elsewhere
from dorm.local.spec_files import load_document, parse_spec
from events.spec import SpecError, document_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.client.client import Client
    from dorm.core.query.assumed import Plan, PlannedApp
    from dorm.core.state import App, State
    from events.spec import AppSpec
    from events.spec.editing import Changes


# --- scale ------------------------------------------------------------------------------------------------------------


@command(user=True)
async def scale(
    cx: Cluster,
    app: AppName,
    containers: Annotated[
        int | None, typer.Argument(metavar="[N]", min=1, help="Exactly this many containers.")
    ] = None,
    n_min: Annotated[
        int | None, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option("--n-max", min=1, help="The largest number of containers that it can use.")
    ] = None,
) -> None:
    """Change how many containers an app may have; the next decision applies it.

    N fixes the size: n_min and n_max are both N, so the app waits while the
    cluster has no room for all of them. With different bounds, the policy chooses
    a number between them. `dorm update` also changes the weight.

    [bold]Examples[/]

      dorm scale digits-mlp 4

      dorm scale digits-mlp --n-max 8
    """
    if containers is not None and (n_min is not None or n_max is not None):
        raise WrongUsage("N is both n_min and n_max; give N or the bounds", code="usage.conflict")
    if containers is None and n_min is None and n_max is None:
        raise WrongUsage("say how many: N, --n-min or --n-max", code="usage.nothing_to_do")

    async with cx.client() as connected:
        changed = await connected.update(app, n_min=n_min or containers, n_max=n_max or containers)
        bounds = f"n_min {changed.n_min}, n_max {changed.n_max}{undone_by_bounds(changed)}"
        console.print(Text(f"{changed.name}: {bounds}"))


# --- the folder of an edited spec -------------------------------------------------------------------------------------


async def with_folder(
    connected: Client, document: dict[str, Any], app: App, base: Path, *, send: bool, show_ignored: bool
) -> dict[str, Any]:
    """Return the document with the hash of its folder in place of a path, relative to `base`; any other document as it is.

    The folder is shipped with `send`, else only looked at.  What is left out is said, each entry with `show_ignored`.  If nothing in it has changed, the app keeps what it has, so that
    a new commit of the same files restarts nothing.  Raises Fail for someone else's app, SpecError, Unshippable, and the log's
    errors."""
    if not isinstance(document.get("workdir"), str):
        return document
    from dorm.cli.project import show_left_out, with_workdir
    from dorm.workdir import folder_as_shipped, tenant_of
    from events.spec import Workdir, check_spec

    spec, before = check_spec({**document, "user": app.user}), app.owners_spec.workdir
    if await tenant_of(connected, app.user) != app.tenant:
        text = (
            f"workdir: {app.name} belongs to {app.tenant}, and a folder is shipped for its owner alone; name the hash of one "
            "that the owner has shipped (`dorm describe`), or let the owner edit it"
        )
        raise Fail(text, code="edit.workdir_of_another")
    if send:
        shipped = (await with_workdir(connected, spec, base, show_ignored=show_ignored)).workdir
    else:
        if show_ignored:
            show_left_out(spec, base)
        shipped = await folder_as_shipped(connected.log.files, base / str(spec.workdir))
    if isinstance(before, Workdir) and isinstance(shipped, Workdir) and before.hash == shipped.hash:
        shipped = before
    return {**document, "workdir": msgspec.to_builtins(shipped)}


# --- from what people type to a spec ----------------------------------------------------------------------------------

_EDITORS = ("VISUAL", "EDITOR")


def from_file(path: Path, spec: AppSpec) -> dict[str, Any]:
    """Return the document of a spec file.  A spec without a user keeps the app's, one without a group keeps that of the
    app's sweep, and one without a Python keeps the path of the app's, which may be that of a shell.  Raises SpecError."""
    document = load_document(path)
    if not isinstance(document, dict):
        raise SpecError(f"{path}: a spec is a map with name, command and demand", code="spec.not_a_map")
    group = {"group": document_of(spec)["group"]} if spec.group is not None else {}
    python = {"python": spec.python} if spec.python.startswith("/") else {}
    return {"user": spec.user, **group, **python, **document}


async def from_editor(spec: AppSpec, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
    """Have the user edit the spec in `$VISUAL` or `$EDITOR`, again with the reason as long as `check` refuses it; return None
    if it was left as it was.  Raises Fail if no editor can be started, or it fails."""
    before = as_yaml(document_of(spec))
    command = shlex.split(next((editor for name in _EDITORS if (editor := os.environ.get(name))), "vi"))
    text, why = before, ""
    while True:
        edited = await _edited(command, spec.name, _head(spec.name, why) + text)
        text = "".join(line for line in edited.splitlines(keepends=True) if not line.startswith("#"))
        if text.strip() in ("", before.strip()):
            return None
        try:
            document = parse_spec(text)
            if not isinstance(document, dict):
                raise SpecError("a spec is a map with name, command and demand", code="spec.not_a_map")
            check(document)
            return document
        except SpecError as error:
            if str(error) == why:
                raise
            why = str(error)


def _head(name: str, why: str) -> str:
    lines = [
        f"The spec of {name}.  Lines that begin with # are ignored; leave it as it is, or empty, to change nothing."
    ]
    lines += [f"refused: {' '.join(why.split())}"] if why else []
    return "".join(f"# {line}\n" for line in lines)


async def _edited(command: list[str], name: str, text: str) -> str:
    """Return the text as the editor leaves it."""
    number, path = await asyncio.to_thread(tempfile.mkstemp, ".yaml", f"dorm-{name}-")
    file = Path(path)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as written:
            written.write(text)
        try:
            editor = await asyncio.create_subprocess_exec(*command, path)
        except OSError as error:
            hint = "set EDITOR, or give the change by -f or --set"
            raise Fail(
                f"the editor {command[0]!r} can't be started ({error.strerror}); {hint}", code="editor.failed"
            ) from None
        if code := await editor.wait():
            raise Fail(f"the editor ended with exit code {code}, so nothing is changed", code="editor.failed")
        return await asyncio.to_thread(file.read_text, "utf-8", "replace")
    finally:
        await asyncio.to_thread(file.unlink, missing_ok=True)


# --- edit -------------------------------------------------------------------------------------------------------------

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
    from dorm.core.revisions import check_editable
    from events.spec import SpecError
    from events.spec.editing import differing

    state = await connected.state()
    app = find_app(state, name, connected.user)
    try:
        check_editable(app)
    except SpecError as error:
        raise Fail(str(error), code=error.code) from None
    before = app.owners_spec
    after = await _wanted_spec(connected, app, file, pairs, send=not dry_run, show_ignored=show_ignored)
    changes = differing(before, after) if after is not None else None
    if after is None or changes is None or not changes.all:
        console.print(Text(f"nothing to change: {app.name} has this spec already"))
        return
    if not {"command", "resume", "checkpoint", "env"}.isdisjoint(changes.all):
        print_findings(after)
    planned = _planned(state, app, after) if not app.ended else None
    if output in (Format.json, Format.yaml) and dry_run:
        show_document(_document(app, before, after, changes, planned), output)
    elif output not in (Format.json, Format.yaml):
        _show(app, before, after, changes, planned)
    if dry_run or not (yes or typer.confirm("change it?", default=False)):
        return
    edited = await steering.edit(connected, app.id, after, made_from=before)
    if output in (Format.json, Format.yaml):
        show_document(_document(edited, before, after, changes, planned), output)
    else:
        when = "; it restarts now" if edited.restart_wanted else ""
        when = f"; `dorm restart {edited.name}` starts it" if edited.ended else when
        console.print(Text(f"{edited.name} has revision {edited.revision}{when}"))


async def _wanted_spec(
    connected: Client, app: App, file: Path | None, pairs: list[str] | None, *, send: bool, show_ignored: bool
) -> AppSpec | None:
    """Return the spec that the user wants; None if an editor left it as it was.  A folder that it names is shipped with
    `send`, else only looked at."""
    from dorm.core.revisions import spec_of
    from dorm.local.spec_files import SettingRefused, with_settings
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
    from dorm.core.query.assumed import Assumed, PlanError
    from dorm.core.query.plans import plan

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
    disturbed = [app for app in planned.apps if app.kind]
    for planned_app in disturbed[:_MOST_SHOWN]:
        console.print(Text(_in_words(planned_app, own=planned_app.id == app.id)))
    if len(disturbed) > _MOST_SHOWN:
        console.print(Text(f"and {counted(len(disturbed) - _MOST_SHOWN, 'more app')}; `--dry-run -o json` lists all"))
    if not disturbed:
        console.print(Text("no app is resized or restarted"))


def _in_words(planned: PlannedApp, *, own: bool) -> str:
    from replay.words import begins_again

    size = (
        f"{planned.before} -> {counted(planned.after, 'container')}"
        if planned.before != planned.after
        else counted(planned.after, "container")
    )
    pause = (
        f"; its last pauses were about {planned.adjust_s:.0f} s"
        if planned.measured
        else "; its pause was never measured"
    )
    lost = f"; it {begins_again(planned.lost_s)}" if planned.lost_s else ""
    if planned.kind == "stop":
        why = f": {planned.reason.text}" if planned.reason is not None else ""
        return f"{planned.name} is stopped{'' if lost else ' with a checkpoint'}, and waits{why}{lost}"
    if planned.kind == "start":
        return f"{planned.name} starts with {size}"
    if lost:
        return f"{planned.name} is restarted: {size}{lost}"
    how = "is resized while it runs" if planned.kind == "live" else "is checkpointed and restarted"
    return f"{planned.name} {how}: {size}{pause}" if own or planned.kind != "live" else f"{planned.name} {how}: {size}"


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


# --- restart ----------------------------------------------------------------------------------------------------------


@command(user=True)
async def restart(
    cx: Cluster,
    app: AppName,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore the checkpoint: run the start command, from step 0.")
    ] = False,
    fall_back: Annotated[
        bool,
        typer.Option(
            "--fall-back", help="Set a doubtful checkpoint aside, and resume from the one before; also from now on."
        ),
    ] = False,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
) -> None:
    """Start an app again from its last checkpoint, with its retries reset.

    A running app saves a checkpoint, stops, and starts again in its place. An app
    that pauses after a failure is retried now. A failed or cancelled app resumes
    under its name, as long as the cluster keeps it (`dorm ps --all`). A completed
    app cannot be restarted; submit it again.

    --fresh deletes nothing: the files of the old checkpoints stay in the app's
    folder until it overwrites them. --fall-back deletes nothing either: what
    `dorm checkpoints` shows as doubtful is moved to `.doubtful` in that folder. It
    sets `on_doubtful: fall_back` in the spec.

    [bold]Examples[/]

      dorm restart digits-mlp

      dorm restart digits-mlp --fresh --reason "wrong seed"

      dorm restart digits-mlp --fall-back
    """

    from dorm.client import steering

    async with cx.client() as connected:
        before = await connected.app(app)
        was, at = before.phase, before.checkpoint
        restarted = await steering.restart(connected, app, fresh=fresh, fall_back=fall_back, reason=reason)
    whence = f"from its checkpoint at step {at}" if at is not None and not fresh else "from the start"
    undone = undone_by_restart(before)
    if was == "running" and not fresh:
        whence = "from the start" if undone else "from the checkpoint that it saves now"
        whence += ", or from the start if it reports none" if at is None and not undone else ""
    text = f"{restarted.name} was {was}, and starts again {whence}; `dorm ps` shows when it runs{undone}"
    console.print(Text(text))


# --- retry ------------------------------------------------------------------------------------------------------------


@command(user=True)
async def retry(cx: Cluster, app: AppName) -> None:
    """Retry an app now that pauses after a failure, for example when the cause has been fixed.

    Its failures still count: the next pause is as long as it would have been. For
    an app that has ended, use `dorm restart` or submit it again.

    [bold]Example[/]

      dorm retry digits-mlp
    """

    from dorm.client import operator_requests

    async with cx.client() as connected:
        retried = await operator_requests.retry(connected, app)
    console.print(Text(f"{retried.name} is retried now; `dorm ps` shows when it runs"))


# --- hold -------------------------------------------------------------------------------------------------------------


@command(user=True)
async def hold(
    cx: Cluster,
    apps: AppNames,
    reason: Annotated[str, typer.Option(help="The reason, for the log; `dorm ps` shows it.")] = "",
) -> None:
    """Hold apps: they get no containers until `dorm release`.

    A running app saves a checkpoint, gives its containers back, and resumes from
    there when it is released. A held app keeps its name, its place in the order
    of arrival and its retries, and reserves no share of the cluster. You can hold
    your own apps; an operator can hold all, and only operators release what an
    operator holds.

    [bold]Examples[/]

      dorm hold digits-mlp --reason "the data set is wrong"

      dorm hold sweep-1 sweep-2

      dorm submit app.yaml --hold
    """

    from dorm.client import steering

    async with cx.client() as connected:
        for name in dict.fromkeys(apps):
            held = await steering.hold(connected, name, reason)
            gives = "it gives its containers back" if held.current is not None else "it waits"
            text = f"{held.name} is held: {gives} until `dorm release {held.name}`{undone_by_restart(held)}"
            console.print(Text(text))


# --- note -------------------------------------------------------------------------------------------------------------


@command(user=True)
async def note(
    cx: Cluster,
    app: AppName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to note, in at most 500 characters.")],
) -> None:
    """Note something about an app on the log, for people.

    Its page, its story and `dorm describe` show who noted what, and when. A note
    changes nothing, and cannot be taken back. You can note something about your
    own apps, also about those that have ended, as long as the cluster keeps them;
    an operator can do so for all.

    [bold]Examples[/]

      dorm note digits-mlp "the data set is complete since today"
    """

    from dorm.client import steering

    async with cx.client() as connected:
        found = await steering.note(connected, app, text)
        console.print(Text(f"noted about {found.name}"))


# --- release ----------------------------------------------------------------------------------------------------------


@command(user=True)
async def release(
    cx: Cluster,
    apps: AppNames,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
) -> None:
    """Release held apps: they wait for containers again, and resume from their checkpoints.

    [bold]Examples[/]

      dorm release digits-mlp

      dorm release sweep-1 sweep-2 --reason "the data set is repaired"
    """

    from dorm.client import steering

    async with cx.client() as connected:
        for name in dict.fromkeys(apps):
            released = await steering.release(connected, name, reason)
            console.print(Text(f"{released.name} is released; `dorm ps` shows when it runs"))
