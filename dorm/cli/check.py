"""`dorm check`: everything that can be known of an app before it is submitted."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from dorm.cli import fields as f
from dorm.cli.command import command
from dorm.cli.connect import OPTIONS, Cluster
from dorm.cli.errors import FAILED, line
from dorm.cli.output import Format, Output, console, counted, show_document, solver_prints_elsewhere
from dorm.cli.terminal import one_line
from events.runtimes import runs_images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.core.state import State
    from dorm.doctor.apps import AppFinding, Folder, Observed
    from dorm.doctor.apps import Cluster as Reached
    from dorm.local.commands import Typed
    from dorm.local.scripts import Python, Reading
    from events.spec import CheckedSpec, SpecError
    from events.workdir import Limits

_FILES = (".yaml", ".yml", ".toml")
_STYLES = {"wrong": "red", "unknown": "yellow", "note": "cyan", "ok": "green"}
_NODES_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def complete_file(incomplete: str) -> list[str]:
    """Complete spec files, and folders on the way to them."""
    folder = Path(os.path.dirname(incomplete))
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    names = [
        f"{entry}/" if entry.is_dir() else str(entry) for entry in entries if entry.is_dir() or entry.suffix in _FILES
    ]
    return [name for name in names if name.startswith(incomplete)]


@command(user=True)
async def check(
    cx: Cluster,
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|-- COMMAND...",
            help="A spec, also of a sweep, or a command that starts one worker.",
            autocompletion=complete_file,
        ),
    ],
    n_min: f.NMin = 1,
    n_max: f.NMax = None,
    cpu: f.Cpu = "1",
    memory: f.Memory = None,
    gpu: f.Gpu = None,
    name: f.Name = None,
    image: f.Image = None,
    workdir: f.Workdir = None,
    no_workdir: f.NoWorkdir = False,
    folder: f.Folder = None,
    engine: f.Engine = "plain",
    env: f.Env = None,
    env_file: f.EnvFiles = None,
    requirements: f.Requirements = None,
    volume: f.Volumes = None,
    retries: f.Retries = 0,
    origin: f.Origin = None,
    max_runtime: f.MaxRuntime = None,
    after: f.After = None,
    resizable: f.Resizable = None,
    change: f.Settings = None,
    output: Output = Format.table,
) -> None:
    """Check an app before it is submitted: exit code 1 if it would not run.

    The options are those of `dorm run`. It checks the spec, the folder that would
    be shipped and what is left out, the program (its scripts, the modules that
    they import, the Python that runs it, the paths that they name), volumes and
    variables, whether any node can run it, the limits of its owner, and what it
    would get now, or why and how long it would wait. It runs nothing of the
    program, ships nothing and submits nothing.

    A line is `ok`, `note` (worth knowing), `unknown` (not checked) or `wrong`: it
    would not run, or would do something else than in this shell. Each has a code
    for programs, and says what to do. Without a cluster, everything else is
    checked. Exit codes: 0 nothing is wrong, 1 something is, 2 wrong usage.

    [bold]Examples[/]

      dorm check app.yaml

      dorm check -- python train.py --lr 0.1

      dorm check --engine torchrun --n-max 4 --gpu 1 -- bash run.sh

      dorm check sweep.yaml -o json | jq -r '.findings[] | select(.level == "wrong") | .todo'
    """
    given = f.Given(env, env_file, requirements, volume, max_runtime, after)
    if len(words) == 1 and (words[0].endswith(_FILES) or words[0] == "-"):
        _no_options(ctx, words[0])
        app = _of_file(Path(words[0]))
    else:
        notes = list[str]()
        fields, faults = _fields(given, notes)
        typed = f.command_of(
            words,
            cpu=cpu,
            memory=memory,
            gpu=gpu,
            workdir=workdir,
            no_workdir=no_workdir,
            folder=folder,
            n_min=n_min,
            n_max=n_max,
            name=name or "",
            image=image or "",
            engine=engine,
            fields=fields | ({"resizable": resizable} if resizable else {}),
            settings=tuple(change or ()),
            retries=retries,
            origin=origin or "",
        )
        app = _of_command(typed, faults, notes)
    checked = await _checked(app, cx)
    _show(checked, output)
    if any(finding.level == "wrong" for finding in checked.findings):
        raise typer.Exit(FAILED)


def _no_options(context: typer.Context, file: str) -> None:
    """Refuse options of a command for a file.  Raises WrongUsage."""
    from dorm.cli.errors import WrongUsage

    own = ("words", "output", *OPTIONS)
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in own and parameter.expose_value and source is not None and source.name == "COMMANDLINE":
            text = f"{parameter.opts[0]} is for a command after --; write it into {file}"
            raise WrongUsage(text, code="usage.conflict")


# --- what is to be checked ------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _App:
    """An app as it is described, by a file or a command."""

    name: str
    command: list[str]
    """The command, also if the spec has faults; empty if there is none."""
    base: Path
    """The folder to which its paths are relative."""
    ships: str = ""
    """The folder that would be shipped, "" for none."""
    runs_in: Path | None = None
    """The folder of this machine in which it would run, if that is known."""
    typed: Typed | None = None
    """The command as it was typed; None for a file."""
    spec: CheckedSpec | None = None
    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    apps: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    not_passed: str = ""
    """The variables of this shell that the app does not get, as a sentence."""
    count: int = 1


def _of_file(path: Path) -> _App:
    """Read a spec.  Raises SpecError if there is no such file."""
    from dorm.local.spec_files import load_document, load_spec
    from events.spec import SpecError
    from events.spec.sweeps import is_sweep

    base = Path.cwd() if str(path) == "-" else path.absolute().parent
    app = _App(name=path.stem, command=[], base=base)
    try:
        document = load_document(path)
    except SpecError as error:
        if not error.code.startswith("file."):
            raise
        app.faults += _each(error)
        return app
    if isinstance(document, dict):
        app.name = str(document.get("name") or app.name)
        command, ships = document.get("command"), document.get("workdir")
        app.command = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
        app.ships = ships if isinstance(ships, str) else ""
    app.runs_in = base / app.ships if app.ships else None
    try:
        if is_sweep(document):
            _expand(app, str(path))
        else:
            app.spec = load_spec(path, note=app.notes.append)
    except SpecError as error:
        app.faults += _each(error)
    app.command = list(app.spec.command) if app.spec is not None else app.command
    return app


def _expand(app: _App, path: str) -> None:
    """Make the apps of a sweep.  Raises SpecError."""
    from dorm.cli.sweeps import document_of
    from events.spec import SpecError
    from events.spec.sweeps import expanded

    document, _, placed = document_of([path], {}, {})
    try:
        sweep = expanded(document)
    except SpecError as error:
        raise placed(error) from None
    ends = sweep.specs[:1] if len(sweep.specs) == 1 else (sweep.specs[0], sweep.specs[-1])
    app.name, app.count, app.spec = sweep.name, len(sweep.specs), sweep.specs[0]
    app.apps = [(end.name, tuple(end.command)) for end in ends]


def _of_command(typed: Typed, faults: list[tuple[str, str]], notes: list[str]) -> _App:
    from dorm.local.commands import CommandRefused, document, made_name
    from dorm.local.scripts import check_script
    from events.spec import SpecError, check_spec

    app = _App(name=typed.name or made_name(typed.command), command=list(typed.command), base=Path.cwd(), typed=typed)
    app.ships, app.faults, app.notes = typed.workdir, faults, notes
    app.runs_in = Path(typed.workdir or ".").absolute() if typed.workdir or typed.here else None
    try:
        if app.runs_in is not None and app.runs_in.is_dir():
            check_script(typed.command, app.runs_in)
    except CommandRefused as error:
        app.faults.append((error.code, str(error)))
    try:
        app.spec = check_spec(document(typed, app.name), every=True)
        app.not_passed = f.left_out_of(app.spec)
    except CommandRefused as error:
        app.faults.append((error.code, str(error)))
    except SpecError as error:
        app.faults += _each(error)
    return app


def _fields(given: f.Given, notes: list[str]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the fields of options, without those of files that cannot be read, and what is wrong with these."""
    from events.spec import SpecError

    faults = list[tuple[str, str]]()
    for part in (given, given._replace(requirements=None), given._replace(env_file=None, requirements=None)):
        try:
            return part.fields(notes.append), faults
        except SpecError as error:
            if not faults:
                faults = _each(error)
    return {}, faults


def _each(error: SpecError) -> list[tuple[str, str]]:
    """Return the codes and texts of everything that a reader found wrong with a spec."""
    return [(each.code, str(each)) for each in (error, *error.others)]


# --- observing ------------------------------------------------------------------------------------------------------------


class _Checked(NamedTuple):
    app: _App
    cluster: str
    """"" if none was reached."""
    findings: list[AppFinding]


async def _checked(app: _App, cx: Cluster) -> _Checked:
    from dorm.doctor.apps import judge_app
    from events.errors import code_of
    from events.log.records import LogError
    from events.workdir import Limits

    place = cx.target()
    reached: Reached | None = None
    unreached = ("", "")
    limits, room = Limits(), None
    try:
        async with cx.client() as connected:
            limits = await connected.log.files.limits()
            room = await _room(connected, app, limits) if app.ships else None
            reached = await _ask_cluster(connected, app, place.cluster, place.url)
    except LogError as error:
        unreached = (code_of(error), line(error))
    seen = await asyncio.to_thread(_observe, app, limits, room, reached, unreached)
    return _Checked(app, place.cluster if reached is not None else "", judge_app(seen))


async def _room(connected: Client, app: _App, limits: Limits) -> int:
    """Return how many bytes the app's owner may still ship."""
    from dorm.workdir import tenant_of
    from dorm.workdir.keeping import room_of

    owner = app.spec.user if app.spec is not None and app.spec.user != "anonymous" else ""
    tenant = await tenant_of(connected, owner)
    return room_of(limits, tenant, await connected.log.files.listed(tenant), replaced=())


def _observe(
    app: _App, limits: Limits, room: int | None, cluster: Reached | None, unreached: tuple[str, str]
) -> Observed:
    """Look at the folder and the program.  Blocks."""
    from dorm.doctor.apps import Observed
    from dorm.local.scripts import ask_python, read_program, shell_faults, unshipped

    reading: Reading | None = None
    python: Python | None = None
    why = ""
    if app.runs_in is not None and app.runs_in.is_dir():
        reading = read_program(app.command, app.runs_in)
        reading = msgspec.structs.replace(reading, faults={**shell_faults(reading, app.runs_in), **reading.faults})
        program, why = _python_of(app, reading, cluster)
        if program:
            python = ask_python(program, reading, app.runs_in)
            why = "" if python is not None else f"{program} does not answer"
    return Observed(
        name=app.name,
        spec=app.spec,
        faults=tuple(app.faults),
        notes=tuple(app.notes),
        apps=tuple(app.apps),
        count=app.count,
        folder=_folder_of(app, app.runs_in, limits, room) if app.ships and app.runs_in is not None else None,
        unshipped=unshipped(app.command, app.base) if app.typed is None and _ships_nothing(app) else "",
        reading=reading,
        python=python,
        unasked=why,
        not_found=_not_found(app, reading, cluster),
        variables=_variables_of(app),
        not_passed=app.not_passed,
        cluster=cluster,
        unreached=unreached,
    )


def _ships_nothing(app: _App) -> bool:
    return app.spec is not None and not app.spec.workdir


def _variables_of(app: _App) -> tuple[tuple[str, str], ...]:
    """Return codes and texts of what looks like a variable that nothing expands, or that no container has."""
    from events.spec import SpecError
    from events.spec.variables import check_names, findings

    if app.spec is None:
        return ()
    coded = [(finding.code, finding.text) for finding in findings(app.spec)]
    try:
        check_names(app.spec)
    except SpecError as error:
        coded.append((error.code, str(error)))
    return tuple(dict.fromkeys(coded))


def _folder_of(app: _App, root: Path, limits: Limits, room: int | None) -> Folder:
    """Look at what would be shipped, by an owner who may ship `room` bytes more, if that is known.  Blocks."""
    from dorm.doctor.apps import Folder
    from dorm.workdir import Unshippable, look_at
    from dorm.workdir.leaving import notices_of, summary_of
    from dorm.workdir.scanning import FoundFile

    try:
        scanned = look_at(root, limits)
    except Unshippable as error:
        return Folder(path=str(root), refused=(error.code, str(error)))
    names = {entry.path for entry in scanned.entries}
    names |= {str(above) for name in list(names) for above in Path(name).parents}
    files = [entry for entry in scanned.entries if isinstance(entry, FoundFile)]
    summary = summary_of(scanned.left_out)
    left_out = [f"{summary}; --show-ignored of `dorm run` lists them"] if summary else []
    return Folder(
        path=str(root),
        files=len(files),
        size=sum(entry.status.size for entry in files),
        names=frozenset(names),
        left_out=(*left_out, *notices_of(scanned, volumes=app.spec is not None and bool(app.spec.volumes))),
        room=room,
    )


def _python_of(app: _App, reading: Reading, cluster: Reached | None) -> tuple[str, str]:
    """Return the Python of this machine that will run the program, or why it is not of this machine."""
    spec = app.spec
    if spec is not None and spec.image and (cluster is None or cluster.images):
        return "", f"the image {spec.image} brings its own Python"
    if cluster is not None and not cluster.local:
        return "", "the nodes have their own Python"
    if spec is not None and spec.python.startswith("/"):
        return spec.python, ""
    if spec is not None and app.typed is not None and app.command[0] in reading.pythons and "/" in spec.command[0]:
        return spec.command[0], ""
    return shutil.which(next(iter(reading.pythons), "python3"), path=_path_of(spec)) or "", ""


def _path_of(spec: CheckedSpec | None) -> str:
    """Return the PATH of a container of plain processes on this machine."""
    given = spec.env.get("PATH", "") if spec is not None else ""
    chosen = spec is not None and spec.python.startswith("/")
    first = Path(spec.python if spec is not None and chosen else sys.executable).parent
    return f"{first}:{given or _NODES_PATH}"


def _not_found(app: _App, reading: Reading | None, cluster: Reached | None) -> tuple[str, ...]:
    """Return the programs that start the app and are not there, if all nodes are this machine and run plain processes."""
    if app.spec is None or cluster is None or not cluster.local or cluster.images or not cluster.nodes:
        return ()
    candidates = (
        []
        if app.spec.requirements or app.spec.setup
        else [app.spec.command[0], *(reading.pythons if reading is not None else ())]
    )
    named = [word for word in dict.fromkeys(candidates) if "/" not in word or word.startswith("/")]
    return tuple(word for word in named if shutil.which(word, path=_path_of(app.spec)) is None)


# --- the cluster ----------------------------------------------------------------------------------------------------------


async def _ask_cluster(connected: Client, app: _App, name: str, url: str) -> Reached:
    """Ask the cluster about an app; the spec may get another name."""
    from dorm.core.query.views import paused_text
    from dorm.doctor.apps import Cluster as Reached
    from dorm.local.commands import CommandRefused, Typed, check_nodes, document, free_name, with_shell_python
    from events.spec import check_spec

    state = await connected.state()
    nodes = _usable_nodes(state, app.spec)
    local = check_nodes(Typed(command=("true",), demand={}, image="any", workdir="."), nodes, url)
    typed = app.typed
    if typed is not None and app.spec is not None:
        wanted = typed.name or free_name(app.name, {app.name for app in state.apps.values()})
        app.spec = check_spec(document(typed, wanted, local=local))
        try:
            check_nodes(typed, nodes, url)
        except CommandRefused as error:
            app.faults.append((error.code, str(error)))
    elif app.spec is not None:
        app.spec = await asyncio.to_thread(with_shell_python, app.spec, state.nodes.values(), url)
    reached = Reached(
        name=name,
        nodes=len(nodes),
        local=local,
        images=tuple(node.id for node in nodes if runs_images(node.runtime)),
        processes=tuple(node.id for node in nodes if not runs_images(node.runtime)),
        paused=paused_text(state),
    )
    return reached if app.spec is None else await _with_placement(connected, state, app.spec, reached)


def _usable_nodes(state: State, spec: CheckedSpec | None) -> list[Any]:
    from events.spec.requirements import requirement

    wanted = requirement(spec.require if spec is not None else "")
    return [node for _, node in sorted(state.nodes.items()) if not node.gone and wanted.matches(node.labels)]


async def _with_placement(connected: Client, state: State, spec: CheckedSpec, reached: Reached) -> Reached:
    """Add whether the cluster would accept the app, and what it would get."""
    from dorm.core.admission import refusals
    from dorm.core.query.assumed import Assumed, PlanError
    from dorm.core.query.plans import plan
    from dorm.core.state import Submission
    from events.identities import owned_id
    from events.spec import as_shipped, document_of

    now = max(state.time, time.time_ns())
    tenant = state.known.tenant_of(connected.user) if state.known is not None else ""
    own_spec = as_shipped(spec if spec.user != "anonymous" else msgspec.structs.replace(spec, user=connected.user))
    submission = Submission(
        id=owned_id(tenant, "check"), seq=0, at=now, by=connected.user, spec=document_of(spec), size=0
    )
    refused = [(refusal.code, str(refusal)) for refusal in refusals(state, own_spec, submission)]
    if refused:
        return msgspec.structs.replace(reached, refusals=tuple(refused))
    try:
        with solver_prints_elsewhere():
            planned = await asyncio.to_thread(plan, state, now, Assumed(specs=(own_spec,)))
    except PlanError as error:
        return msgspec.structs.replace(reached, refusals=((error.code, str(error)),))
    own = next((app for app in planned.apps if app.name == spec.name and app.id not in state.apps), None)
    others = [
        f"{app.name} would go from {counted(app.before, 'container')} to {app.after}"
        for app in planned.apps
        if app is not own and app.kind and app.before != app.after
    ]
    start = await _start_of(connected, state, own_spec, now) if own is not None and not own.after else ""
    return msgspec.structs.replace(reached, planned=own, others=tuple(others), start=start)


async def _start_of(connected: Client, state: State, spec: CheckedSpec, now: int) -> str:
    """Return when the app would start, as a sentence; "" if nobody can say."""
    from dorm.core.query.assumed import PlanError
    from replay.simulator.forks.starting import Outlook, starting_new
    from replay.story.story import follow

    if spec.hold or not state.nodes:
        return ""
    outlook = Outlook()
    latest = await follow(connected.log, spec.name, [outlook])
    if outlook.history is None:
        return ""
    try:
        with solver_prints_elsewhere():
            return (await asyncio.to_thread(starting_new, outlook.history, latest, spec, now)).text
    except PlanError:
        return ""


# --- showing --------------------------------------------------------------------------------------------------------------


def _show(checked: _Checked, output: Format) -> None:
    levels = [finding.level for finding in checked.findings]
    count = {level: levels.count(level) for level in ("wrong", "unknown", "note", "ok")}
    if output in (Format.json, Format.yaml):
        shown = [msgspec.to_builtins(finding) for finding in checked.findings]
        for finding in shown:
            del finding["about"]
        document = {"app": checked.app.name, "cluster": checked.cluster, **count, "findings": shown}
        show_document(document, output)
        return
    if console.is_terminal and output is not Format.wide:
        _show_folded(checked.findings)
    else:
        for finding, following in zip_longest(checked.findings, checked.findings[1:]):
            console.print(Text(f"{finding.level:<8}{finding.check:<12}").append(_text(finding)))
            if _shows_todo(finding, following):
                console.print(Text(f"{'':<20}{one_line(finding.todo)}"))
    verdict = "it would not run as it does here" if count["wrong"] else "nothing is wrong"
    rest = f"{counted(count['note'], 'note')}, {count['unknown']} unknown"
    console.print(
        Text(f"\n{checked.app.name}: {verdict}: {counted(count['wrong'], 'thing')} wrong, {rest}", style="bold")
    )


def _text(finding: AppFinding) -> str:
    return one_line(finding.text) + (f" [{finding.code}]" if finding.code else "")


def _shows_todo(finding: AppFinding, following: AppFinding | None) -> bool:
    """Return whether to say what to do: once for findings that follow each other and need the same."""
    return bool(finding.todo) and (following is None or following.todo != finding.todo)


def _show_folded(findings: Sequence[AppFinding]) -> None:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for finding, following in zip_longest(findings, findings[1:]):
        text = Text(_text(finding))
        if _shows_todo(finding, following):
            text.append(f"\n{one_line(finding.todo)}", style="dim")
        drawn.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.check, text)
    console.print(drawn, soft_wrap=False)
