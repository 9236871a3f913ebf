"""`dorm sweep`: many apps from one spec.

What people type (a file, or a command with `-p NAME=VALUES` and options) becomes the document of a sweep.  It is expanded
before anything is connected to, so that whatever is wrong with it is reported first, at the place where it was typed.
"""

from __future__ import annotations

import asyncio
import re
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_engine
from dorm.cli.errors import INTERRUPTED, Fail, WrongUsage
from dorm.cli.fields import (
    After,
    Env,
    EnvFiles,
    Given,
    MaxRuntime,
    Requirements,
    Settings,
    ShowIgnored,
    Volumes,
    command_of,
    print_findings,
    print_left_out,
)
from dorm.cli.output import (
    Format,
    Output,
    SheetFormat,
    SheetOutput,
    ago,
    console,
    counted,
    progress_console,
    show,
    show_document,
    write_csv,
)
from dorm.cli.tables import SWEEPS, SweepName, phases_of, reported_step, sweep_lines, with_parameters
from dorm.cli.terminal import in_shell, print_line
from events.spec import SpecError
from events.spec.groups import MOST_APPS, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dorm.client.client import Client
    from dorm.client.sweeps import Outcome
    from dorm.core.query.sweeps import SweptRow
    from dorm.local.commands import Typed
    from events.spec.sweeps import Sweep


# --- from what people type to the document of a sweep -----------------------------------------------------------------

_FILES = (".yaml", ".yml", ".toml")
_LONGEST_MADE = 36
_RANGE = re.compile(r"(-?(?:0|[1-9][0-9]{0,14}))\.\.(-?(?:0|[1-9][0-9]{0,14}))")
_NEARLY_RANGE = re.compile(
    r"([A-Za-z_-]*)[-+]?[0-9._]*[0-9](?:[eE][-+]?[0-9]+)?\.\.\1[-+]?[0-9._]*[0-9](?:[eE][-+]?[0-9]+)?"
)
_OPENS = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "'\""


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `--param`.  Raises WrongUsage."""
    values_of: dict[str, Any] = {}
    for option in given:
        name, sign, values = option.partition("=")
        if not sign or not name or not values:
            raise WrongUsage(
                f"--param: {option!r} has no values; write {name or 'lr'}=0.1,0.01 or {name or 'seed'}=0..9"
            )
        if name in values_of:
            raise WrongUsage(f"--param: {name} is given twice; write all its values with commas between")
        values_of[name] = _values(name, values)
    return values_of


def _values(name: str, text: str) -> Any:
    """Return the values of one parameter as the document of a sweep has them.  Raises WrongUsage."""
    parsed: list[Any] = []
    parts = split(name, text)
    for part, quoted in parts:
        bounds = None if quoted else _RANGE.fullmatch(part)
        if bounds is not None:
            numbers = range(int(bounds[1]), int(bounds[2]) + 1)
            if len(parts) == 1:
                return {"range": [numbers.start, numbers.stop]}
            if not numbers or len(numbers) > MOST_APPS:
                why = (
                    "has no number: the first is more than the last"
                    if not numbers
                    else f"has more than {MOST_APPS:,} numbers"
                )
                raise WrongUsage(f"--param: {name}: the range {part} {why}", code="usage.param.range")
            parsed += numbers
        elif not quoted and _NEARLY_RANGE.fullmatch(part):
            text = (
                f"--param: {name}: {part} is no range, which has two whole numbers without zeros before them, such as 0..9; write the "
                f'values one by one, or "{part}" in quotes for this very text'
            )
            raise WrongUsage(text, code="usage.param.range")
        else:
            parsed.append(part if quoted else setting(part))
    return parsed


def split(name: str, text: str) -> list[tuple[str, bool]]:
    """Return the values between the commas of `--param`, and whether each is in quotes.

    Commas within brackets and quotes belong to a value.  Spaces around a value do not.  Quotes around a whole value are left out; in
    them, two quotes stand for one.  Raises WrongUsage for brackets and quotes without their ends, and for empty values.
    """
    parts: list[tuple[str, bool]] = []
    at = 0
    while at <= len(text):
        at = _end_of_space(text, at)
        if text[at : at + 1] and text[at] in _QUOTES:
            value, at = _quoted(name, text, at)
            parts.append((value, True))
            at = _end_of_space(text, at)
            if at < len(text) and text[at] != ",":
                raise _unclear(
                    name, f"{text[at:]!r} follows the end of a quote; write a comma between, or put all of it in quotes"
                )
        else:
            end = _end(name, text, at)
            value = text[at:end].strip()
            if not value:
                raise _unclear(name, f'a value is empty; write "" for an empty text, or leave out a comma of {text!r}')
            parts.append((value, False))
            at = end
        at += 1
    for quote in _QUOTES:
        odd = [value for value, quoted in parts if not quoted and value.count(quote) % 2]
        if len(odd) > 1:
            raise _unclear(
                name,
                f"it is unclear whether the commas between {odd[0]} and {odd[1]} divide values; put whole values in quotes",
            )
    return parts


def _end_of_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _quoted(name: str, text: str, at: int) -> tuple[str, int]:
    """Return what is in quotes from a place on, and the place behind it."""
    quote = text[at]
    value, at = "", at + 1
    while True:
        end = text.find(quote, at)
        if end < 0:
            raise _unclear(name, f"the quote {quote} has no end in {text!r}; write two of them for one within quotes")
        value += text[at:end]
        if text[end + 1 : end + 2] != quote:
            return value, end + 1
        value, at = value + quote, end + 2


def _end(name: str, text: str, at: int) -> int:
    """Return where a value without quotes ends: at the next comma outside of brackets."""
    open_brackets: list[str] = []
    while at < len(text):
        sign = text[at]
        if sign in _OPENS:
            open_brackets.append(_OPENS[sign])
        elif sign in _OPENS.values():
            if not open_brackets or open_brackets.pop() != sign:
                raise _unclear(name, f"{sign} closes no bracket in {text!r}; put a value that holds one in quotes")
        elif open_brackets and sign in _QUOTES:
            at = _quoted(name, text, at)[1]
            continue
        elif sign == "," and not open_brackets:
            return at
        at += 1
    if open_brackets:
        raise _unclear(
            name, f"{open_brackets[-1]} is missing in {text!r}; put a value that holds one bracket in quotes"
        )
    return at


def _unclear(name: str, text: str) -> WrongUsage:
    return WrongUsage(f"--param: {name}: {text}", code="usage.param.malformed")


def document_of(
    command: Sequence[str], typed: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], Typed | None, Callable[[SpecError], SpecError]]:
    """Return the sweep of a file or of a command, for the latter also the typed words, and what adds the file and its lines to
    errors of the sweep.  Raises WrongUsage, SpecError."""
    from dorm.local.spec_files import including, read_spec
    from dorm.local.spec_files import name_of as named
    from events.spec import SpecError
    from events.spec.sweeps import FIELDS

    if len(command) == 1 and (command[0].endswith(_FILES) or command[0] == "-"):
        extra = next((name for name, value in typed.items() if value), None)
        if extra is not None:
            option = extra.replace("_", "-")
            raise WrongUsage(f"--{option} is for a command after --; write it into {command[0]}", code="usage.conflict")
        path = Path(command[0])
        source = read_spec(path)

        def placed(error: SpecError) -> SpecError:
            return error.at_lines(source.line).within(named(path))

        document = source.value if isinstance(source.value, dict) else {}
        try:
            document = including(
                document, path, given, lambda text: print_line(f"note: {command[0]}: {text}", error=True)
            )
        except SpecError as error:
            raise placed(error) from None
        if "sweep" in given and "array" in document and "array" not in given:
            del document["array"]
        if not any(field in document for field in ("array", "sweep")):
            raise WrongUsage(
                f"{command[0]} has no `array` and no `sweep`; add one, name --param or --array, or use `dorm submit`",
                code="usage.nothing_to_do",
            )
        return document, None, placed
    if not any(field in given for field in ("array", "sweep")):
        raise WrongUsage("say what differs: --param NAME=VALUES or --array N", code="usage.nothing_to_do")
    made = _typed(command, typed)
    return {**spec_of(made), **{field: given[field] for field in FIELDS if field in given}}, made, lambda error: error


def _typed(command: Sequence[str], given: dict[str, Any]) -> Typed:
    return command_of(
        command,
        cpu=given["cpu"] or "1",
        memory=given["memory"],
        gpu=given["gpu"],
        workdir=given["workdir"],
        no_workdir=given["no_workdir"],
        folder=given["folder"],
        n_min=given["n_min"] or 1,
        n_max=given["n_max"],
        image=given["image"] or "",
        engine=given["engine"] or "plain",
        fields=Given(*(given[field] for field in Given._fields)).fields(),
        settings=tuple(given["set"] or ()),
        retries=given["retries"] or 0,
    )


def spec_of(typed: Typed, *, local: bool = True) -> dict[str, Any]:
    """Return the spec of a command.  `local`: whether all nodes are this machine.  Raises WrongUsage."""
    from dorm.local.commands import CommandRefused, document

    try:
        return document(typed, name_of(typed), local=local)
    except CommandRefused as error:
        raise WrongUsage.of(error) from None


def name_of(typed: Typed) -> str:
    """Return a name that is made from a command, with room for a number after it."""
    from dorm.local.commands import made_name

    return made_name(typed.command)[:_LONGEST_MADE].strip("-")


def base_of(command: Sequence[str]) -> Path:
    """Return the folder to which paths of a sweep are relative: the folder of its file, else the current one."""
    is_path = len(command) == 1 and command[0].endswith(_FILES)
    return Path(command[0]).absolute().parent if is_path else Path.cwd()


# --- show -------------------------------------------------------------------------------------------------------------

_METRICS = [("STEP", "step"), ("LOSS", "loss"), ("RATE", "samples_per_s"), ("RAN", "ran")]
_WIDE = [("ID", "id"), ("SIZE", "containers"), ("RESIZED", "adjustments"), ("FAILURES", "failures")]


@command()
async def show_sweep(
    cx: Cluster,
    sweep: SweepName,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Sort, the best first, by loss, container_s (both: less is better), step or samples_per_s.",
        ),
    ] = None,
    output: SheetOutput = SheetFormat.table,
) -> None:
    """Show the apps of a sweep side by side: parameters, state, metrics.

    Ended apps are included as long as the cluster keeps them (`dorm policy get
    retention`); `dorm history` has all.

    JSON has the sweep's name, user, count, submitted, parallel, phases,
    containers and age_s, and its apps, each with its parameters.

    [bold]Examples[/]

      dorm sweep show lr --by loss

      dorm sweep show lr -o csv > lr.csv

      dorm sweep show lr --by loss -o json | jq -r '.apps[0].name'
    """
    from dorm.client.sweeps import find_sweep
    from dorm.core.query.sweeps import METRICS, best_first, sweep_row, swept_rows

    if by is not None and by not in METRICS:
        raise WrongUsage(f"--by: {by} is not a metric of a sweep; the metrics are {', '.join(METRICS)}")

    async with cx.client() as connected:
        apps = find_sweep(await connected.state(), sweep, connected.user)
        now = time.time_ns()
        summary, rows = sweep_row(apps, now), swept_rows(apps, now, await connected.reported())
    rows = best_first(rows, by) if by is not None else rows
    if output is SheetFormat.csv:
        write_csv([with_parameters(row) for row in msgspec.to_builtins(rows)])
    elif output in (SheetFormat.json, SheetFormat.yaml):
        show_document({**msgspec.to_builtins(summary), "apps": msgspec.to_builtins(rows)}, Format(output.value))
    else:
        limit = f", at most {summary.parallel} at once" if summary.parallel else ""
        missing = f", {summary.count - summary.submitted} not submitted" if summary.submitted < summary.count else ""
        console.print(Text(f"{summary.name}: {phases_of(summary)}{missing}{limit}"))
        _show_table(rows, Format(output.value))


def _show_table(rows: Sequence[SweptRow], output: Format) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.parameters))
    columns = [("NAME", "name"), ("PHASE", "phase"), *((name, f"={name}") for name in names), *_METRICS]
    plain: list[dict[str, Any]] = [
        {
            **msgspec.to_builtins(row),
            **{f"={name}": _shown(value) for name, value in row.parameters.items()},
            "step": reported_step(row.step, row.loss, row.loss_is),
            "loss": row.loss_is or row.loss,
            "ran": ago(row.container_s) if row.container_s else None,
        }
        for row in rows
    ]
    show(plain, columns, output, wide=_WIDE, note=("NOTE", "note"))


def _shown(value: object) -> str:
    """Return a parameter as its command has it: `0.001`, not `1e-03`."""
    from events.spec.groups import as_text

    assert isinstance(value, bool | int | float | str)
    return as_text(value)


# --- edit -------------------------------------------------------------------------------------------------------------


@command(user=True)
async def edit_sweep(
    cx: Cluster,
    sweep: SweepName,
    parallel: Annotated[
        int, typer.Option("--parallel", "-k", min=0, help="Run at most this many apps at a time; 0: no limit.")
    ],
) -> None:
    """Change how many apps of a sweep run at a time.

    After an increase, more apps start with the next decision. After a decrease,
    running apps keep running, and others start once enough have ended. The limit
    also applies to apps that a `dorm sweep run` is still submitting. `dorm edit
    APP` changes one app of a sweep.

    [bold]Examples[/]

      dorm sweep edit lr --parallel 8

      dorm sweep edit lr -k 0
    """

    from dorm.client.sweeps import set_parallel

    async with cx.client() as connected:
        before = await set_parallel(connected, sweep, parallel)
    console.print(Text(f"{sweep}: {_words(parallel)} at once from now on (before: {_words(before)})"))


def _words(limit: int) -> str:
    return f"at most {limit}" if limit else "as many as there is room for"


# --- run, list, cancel ------------------------------------------------------------------------------------------------

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
    print_findings(sweep.specs[0])
    made = _Made(document, command, name is not None, base_of(words), most, show_ignored)
    if dry_run:
        if show_ignored:
            from dorm.cli.project import show_left_out

            show_left_out(sweep.specs[0], made.base)
        _show_specs(sweep, output)
        return
    if command is not None:
        print_left_out(sweep.specs[0])
    await _run(made, wait, output, cx)


def _expanded(document: Mapping[str, Any], most: int) -> Sweep:
    from events.spec.sweeps import expanded

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
        print_line(f"{spec.name} runs: {in_shell(spec.command)}")


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
    from dorm.cli.signals import stops
    from dorm.cli.wait import reporting_missing_master, until_all_ended

    async with cx.client() as connected:
        sweep = await _ready(connected, made, cx.target().url)
        with stops() as signals:
            async with reporting_missing_master(connected):
                outcome = await _submitted(connected, sweep, signals.first)
        document = {"name": sweep.name, "count": len(sweep.specs), **msgspec.to_builtins(outcome)}
        if output in (Format.json, Format.yaml) and not wait:
            show_document(document, output)
        elif not wait:
            there = f", and {outcome.before} were there already" if outcome.before else ""
            hint = f"`dorm sweep show {sweep.name}` shows them"
            console.print(Text(f"{sweep.name}: {counted(outcome.new, 'app')} submitted{there}; {hint}"))
        if wait:
            async with reporting_missing_master(connected):
                await until_all_ended(connected, sweep.name)
            if output in (Format.json, Format.yaml):
                show_document(document, output)


async def _ready(connected: Client, made: _Made, url: str) -> Sweep:
    """Return the sweep as it can be submitted: its folder shipped, under a name that it can have.  Raises CommandRefused if a
    node could not run it."""
    from dorm.cli.project import with_workdir
    from dorm.client.sweeps import free_name
    from dorm.local.commands import check_nodes, with_shell_python
    from events.spec.sweeps import digest_of

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
    from dorm.client.sweeps import submit
    from events.errors import DormError, code_of

    outcomes: list[Outcome] = []
    there = 0

    async def work() -> None:
        with progress_of("submitting") as report:

            def answered(done: int) -> None:
                nonlocal there
                there = done
                report(done, len(sweep.specs))

            outcomes.append(await submit(connected, sweep, answered=answered))

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
    return outcomes[0]


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

    from dorm.cli.wait import all_ended, reporting_missing_master
    from dorm.client.sweeps import cancel

    async with cx.client() as connected:
        cancelled = await cancel(connected, sweep, reason)
        if wait:
            async with reporting_missing_master(connected):
                await all_ended(connected, cancelled.apps)
            console.print(Text(f"{sweep}: {counted(len(cancelled.apps), 'app')} ended"))
        else:
            console.print(Text(f"{sweep}: asked {counted(len(cancelled.apps), 'app')} to stop"))
