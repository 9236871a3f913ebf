"""`dorm sweep run|list|show|edit|cancel`: many apps from one spec."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.text import Text

from dorm.cli.authoring.fields import (
    After,
    Env,
    EnvFiles,
    Given,
    MaxRuntime,
    Requirements,
    Settings,
    ShowIgnored,
    Volumes,
    tell_findings,
    tell_left_out,
)
from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_engine
from dorm.cli.errors import INTERRUPTED, Fail
from dorm.cli.output import Format, Output, console, counted, progress_console, show, show_document
from dorm.cli.sweeps.described import base_of, document_of, name_of, parameters, spec_of
from dorm.cli.sweeps.edit import edit_sweep
from dorm.cli.sweeps.show import show_sweep
from dorm.cli.swept.lines import SWEEPS, SweepName, sweep_lines
from dorm.cli.terminal import in_shell, say
from events.spec import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.client.sweeps.submitting import Outcome
    from dorm.local.commands import Typed
    from events.spec.sweeps.expanding import Sweep

app = typer.Typer(
    help="Run many apps from one spec: an array, or all combinations of parameters, with a limit "
    "on how many run at a time.",
    no_args_is_help=True,
)
app.command("show")(show_sweep)
app.command("edit")(edit_sweep)


class Mode(StrEnum):
    """How the values of several parameters are combined."""

    grid = "grid"
    list = "list"


@app.command("run")
@command(user=True)
async def run_sweep(
    cx: Cluster,
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE|-- COMMAND...", help="A spec with `array` or `sweep`, or a command that starts one worker."),
    ],
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUES", help="Values with commas between, as they are typed; 0..9 is a range; quotes keep commas; may be repeated."),
    ] = None,
    array: Annotated[int | None, typer.Option(min=1, help="Submit this many apps that differ only in DORM_ARRAY_INDEX.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="grid: all combinations; list: the first values of all parameters, then the second ones.")] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", "-k", min=0, help="Run at most this many apps at a time; 0: no limit.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep; default: the file's, or derived from the command.")] = None,
    most: Annotated[
        int, typer.Option(min=1, max=100_000, envvar="DORM_SWEEP_MOST", help="Refuse a sweep of more apps.")
    ] = 1000,
    n_min: Annotated[int | None, typer.Option("--n-min", min=1, help="The smallest number of containers with which an app can run.")] = None,
    n_max: Annotated[int | None, typer.Option("--n-max", min=1, help="The largest number of containers that an app can use.")] = None,
    cpu: Annotated[str | None, typer.Option(help="Cores of one container, such as 2 or 500m; default: 1.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of one container, such as 4GiB.")] = None,
    gpu: Annotated[int | None, typer.Option(min=1, help="GPUs of one container.")] = None,
    image: Annotated[str | None, typer.Option(help="Image that contains the program, for nodes with Docker.")] = None,
    workdir: Annotated[str | None, typer.Option(metavar="FOLDER", help="Ship this folder and run in a copy of it; default: the current folder.")] = None,
    no_workdir: Annotated[bool, typer.Option("--no-workdir", help="Ship nothing; run in the current folder itself, or in the image's working directory.")] = False,
    folder: Annotated[str | None, typer.Option(help="Ship nothing; run in this folder: an absolute path on every node, or in the image.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine, such as torchrun; default: plain.", autocompletion=complete_engine)] = None,
    env: Env = None,
    env_file: EnvFiles = None,
    requirements: Requirements = None,
    volume: Volumes = None,
    max_runtime: MaxRuntime = None,
    after: After = None,
    change: Settings = None,
    retries: Annotated[int | None, typer.Option(min=0, help="How often an app is restarted after failures.")] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until all have ended; exit with 1 unless all completed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the specs and submit nothing.")] = False,
    show_ignored: ShowIgnored = False,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Submit a sweep: one app for each combination of parameters.

    A parameter's value is `{name}` in the command and in variables, and
    DORM_PARAM_NAME in the environment, as it is typed: 010 stays 010. A list, a
    tuple or JSON is one value, and so is a text in quotes. Each app also has DORM_SWEEP,
    DORM_ARRAY_INDEX (from 0) and DORM_ARRAY_COUNT. The apps are called NAME-0000,
    NAME-0001 and so on. A command's folder is shipped once for all apps, as by
    `dorm run`, and so is the `workdir` of a file.

    The cluster enforces the limit of --parallel even if this command ends. After
    an interruption, the same command submits the missing apps.

    [bold]Examples[/]

      dorm sweep run sweep.yaml

      dorm sweep run -p lr=0.1,0.01 -p seed=0..4 -k 4 -- python train.py --lr {lr} --seed {seed}

      dorm sweep run --array 20 --name shards -- ./process.sh

      dorm sweep run -p lr=0.1,0.01 --engine torchrun --n-min 2 -- python train.py --lr {lr}

      dorm sweep run -p 'layers=[64,64],[128]' -p seed=0..4,17 -- python train.py --layers {layers}

      dorm sweep run sweep.yaml --dry-run
    """
    typed = {"n_min": n_min, "n_max": n_max, "cpu": cpu, "memory": memory, "gpu": gpu, "image": image, "folder": folder,
             "workdir": workdir, "no_workdir": no_workdir, "engine": engine, "retries": retries, "set": change,
             **Given(env, env_file, requirements, volume, max_runtime, after)._asdict()}  # fmt: skip
    given: dict[str, Any] = {
        "array": array,
        "sweep": parameters(param or []) or None,
        "mode": mode.value if mode is not None else None,
        "parallel": parallel,
    }
    given = {field: value for field, value in given.items() if value is not None}
    document, command, placed = document_of(words, typed, given)
    if name is not None:
        document["name"] = name
    try:
        sweep = _expanded(document, most)  # Whatever is wrong with it is said before anything is connected to.
    except SpecError as error:
        raise placed(error) from None
    tell_findings(sweep.specs[0])
    made = _Made(document, command, name is not None, base_of(words), most, show_ignored)
    if dry_run:
        if show_ignored:
            from dorm.cli.project.shipping import show_left_out

            show_left_out(sweep.specs[0], made.base)
        _show_specs(sweep, output)
        return
    if command is not None:
        tell_left_out(sweep.specs[0])
    await _run(made, wait, output, cx)


def _expanded(document: Mapping[str, Any], most: int) -> Sweep:
    from events.spec.sweeps.expanding import expanded

    return expanded(document, most=most)


def _show_specs(sweep: Sweep, output: Format) -> None:
    from events.spec import document_of
    from events.spec.groups import as_text

    if output in (Format.json, Format.yaml):
        show_document([document_of(spec) for spec in sweep.specs], output)
        return
    rows = []
    for spec in sweep.specs:
        parameters = spec.group.parameters if spec.group is not None else {}
        shown = ", ".join(f"{key}={as_text(value)}" for key, value in parameters.items())
        rows.append({"name": spec.name, "parameters": shown, "command": in_shell(spec.command)})
    limit = f", at most {sweep.parallel} at once" if sweep.parallel else ""
    console.print(Text(f"{sweep.name}: {counted(len(sweep.specs), 'app')}{limit}"))
    show(rows, [("NAME", "name"), ("PARAMETERS", "parameters")], output, note=("COMMAND", "command"))
    for spec in sweep.specs if len(sweep.specs) < 2 else (sweep.specs[0], sweep.specs[-1]):
        say(f"{spec.name} runs: {in_shell(spec.command)}")


# --- running ------------------------------------------------------------------------------------------------------------


class _Made(NamedTuple):
    """A sweep as it was described."""

    document: dict[str, Any]
    command: Typed | None
    named: bool
    """Whether its user gave it a name."""
    base: Path
    most: int
    show_ignored: bool


async def _run(made: _Made, wait: bool, output: Format, cx: Cluster) -> None:
    from dorm.cli.apps.waiting import reporting_missing_master
    from dorm.cli.signals import stops
    from dorm.cli.swept.waiting import until_all_ended

    async with cx.client() as connected:
        sweep = await _ready(connected, made, cx.target().url)
        with stops() as signals:
            async with reporting_missing_master(connected):
                outcome = await _submitted(connected, sweep, signals.first)
        found = {"name": sweep.name, "count": len(sweep.specs), **msgspec.to_builtins(outcome)}
        if output in (Format.json, Format.yaml) and not wait:
            show_document(found, output)
        elif not wait:
            there = f", and {outcome.before} were there already" if outcome.before else ""
            hint = f"`dorm sweep show {sweep.name}` shows them"
            console.print(Text(f"{sweep.name}: {counted(outcome.new, 'app')} submitted{there}; {hint}"))
        if wait:
            async with reporting_missing_master(connected):
                await until_all_ended(connected, sweep.name)
            if output in (Format.json, Format.yaml):
                show_document(found, output)


async def _ready(connected: Client, made: _Made, url: str) -> Sweep:
    """Return the sweep as it can be submitted: its folder shipped, under a name that it can have.  Raises CommandRefused if a
    node could not run it."""
    from dorm.cli.project.shipping import with_workdir
    from dorm.client.sweeps.finding import free_name
    from dorm.local.commands import check_nodes, with_shell_python
    from events.spec.sweeps.expanding import digest_of

    state, document = await connected.state(), made.document
    if made.command is not None:
        local = check_nodes(made.command, state.nodes.values(), url)
        made_here = spec_of(made.command, local=local)
        document = {**document, "command": made_here["command"], "python": made_here.get("python", "")}
    sweep = _expanded(document, made.most)
    if made.command is None:
        spec = await asyncio.to_thread(with_shell_python, sweep.specs[0], state.nodes.values(), url)
        document = {**document, **({"python": spec.python} if spec.python else {})}
    shipped = await with_workdir(connected, sweep.specs[0], made.base, show_ignored=made.show_ignored)
    if shipped is not sweep.specs[0]:
        document = {**document, "workdir": msgspec.to_builtins(shipped.workdir)}
    if made.command is not None and not made.named:
        wanted = name_of(made.command)
        name = free_name(state, connected.user, wanted, lambda name: digest_of({**document, "name": name}))
        document = {**document, "name": name}
    return _expanded(document, made.most)


async def _submitted(connected: Client, sweep: Sweep, interrupted: asyncio.Event) -> Outcome:
    """Submit it; an interruption leaves the apps that are on the log.  Raises Fail."""
    from dorm.cli.signals import first_of
    from dorm.cli.source import progress_of
    from dorm.client.sweeps.submitting import submit
    from events.errors import DormError, code_of

    found: list[Outcome] = []
    there = 0

    async def work() -> None:
        with progress_of("submitting") as report:

            def answered(done: int) -> None:
                nonlocal there
                there = done
                report(done, len(sweep.specs))

            found.append(await submit(connected, sweep, answered=answered))

    so_far = "of {} apps are submitted; the same command continues, and `dorm sweep cancel {}` ends what is there"
    try:
        if await first_of(work(), interrupted.wait()):
            text = f"interrupted: {there} {so_far.format(len(sweep.specs), sweep.name)}"
            raise Fail(text, INTERRUPTED, code="interrupted")
    except DormError as error:
        if isinstance(error, Fail) or not there:
            raise
        progress_console.print(Text(f"{there} {so_far.format(len(sweep.specs), sweep.name)}"))
        raise Fail(str(error), code=code_of(error)) from None
    return found[0]


@app.command("list")
@command()
async def list_sweeps(
    cx: Cluster,
    all_sweeps: Annotated[bool, typer.Option("--all", "-a", help="Include sweeps whose apps have all ended.")] = False,
    output: Output = Format.table,
) -> None:
    """List sweeps: how many of their apps run, wait, and have ended.

    [bold]Examples[/]

      dorm sweep list

      dorm sweep list --all -o json
    """
    from dorm.core.query.sweeps import sweep_row, sweeps

    async with cx.client() as connected:
        state = await connected.state()
    live = [apps for apps in sweeps(state).values() if all_sweeps or not all(app.ended for app in apps)]
    rows = [sweep_row(apps, time.time_ns()) for apps in live]
    if output in (Format.json, Format.yaml):
        show(rows, [], output)
    elif rows:
        show(sweep_lines(rows), SWEEPS, output)
    else:
        console.print(Text("no sweep is running or waiting; `dorm sweep list --all` shows those that have ended"))


@app.command("cancel")
@command(user=True)
async def cancel_sweep(
    cx: Cluster,
    sweep: SweepName,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until all apps have ended.")] = False,
) -> None:
    """Cancel all apps of a sweep that have not ended.

    Waiting apps are cancelled first, so that none of them starts in the place of
    one that ends. A command that is still submitting the sweep stops.

    [bold]Example[/]

      dorm sweep cancel lr --reason "wrong data"
    """

    from dorm.cli.apps.waiting import reporting_missing_master
    from dorm.cli.swept.waiting import all_ended
    from dorm.client.sweeps.cancelling import cancel

    async with cx.client() as connected:
        asked = await cancel(connected, sweep, reason)
        if wait:
            async with reporting_missing_master(connected):
                await all_ended(connected, asked.apps)
            console.print(Text(f"{sweep}: {counted(len(asked.apps), 'app')} ended"))
        else:
            console.print(Text(f"{sweep}: asked {counted(len(asked.apps), 'app')} to stop"))
