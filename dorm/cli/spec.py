"""Writing a spec: `dorm spec init` asks for what it needs and writes a file with comments; `dorm schema` prints its JSON Schema."""

from __future__ import annotations

import json
import re
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
import typer
from rich.text import Text

from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import Format, console, progress_console, show_document
from dorm.cli.settings import parse_pairs
from events.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable


# --- a spec as text, with comments ------------------------------------------------------------------------------------

Kind = Literal["plain", "pytorch", "elastic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ABOUT: dict[Kind, str] = {
    "plain": "any program",
    "pytorch": "PyTorch with torch.distributed (DDP, FSDP)",
    "elastic": "a program that uses dorm.elastic, resized while it trains",
}
"""The purpose of each kind."""
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./=-]*")
_NO_TEXT = re.compile(r"[0-9.+-]+[eE]?[0-9]*|0[xob].*|true|false|yes|no|on|off|null|y|n|\.?(inf|nan)", re.IGNORECASE)
"""Words that YAML would read as something other than text."""


class Answers(msgspec.Struct, frozen=True):
    """The contents of the spec."""

    kind: Kind
    name: str
    command: tuple[str, ...]
    n_min: int = 1
    n_max: int = 1
    cpu: str = "1"
    memory: str = ""
    gpu: int = 0
    image: str = ""
    volumes: tuple[tuple[str, str], ...] = ()
    """Names and paths."""


def written(answers: Answers) -> str:
    """Return the spec as YAML with comments."""
    lines = [
        f"# {ABOUT[answers.kind][0].upper()}{ABOUT[answers.kind][1:]}. `dorm submit {answers.name}.yaml` submits it; with "
        "--dry-run it is only checked.",
        f"name: {_word(answers.name)}",
        *_ENGINE[answers.kind],
        f"command: [{', '.join(map(_word, answers.command))}] # starts one worker",
        *_resume(answers),
        *_image(answers.image),
        f"demand: {{{_demand(answers)}}} # of one container",
        f"n_min: {answers.n_min} # fewer containers and it cannot run",
        f"n_max: {answers.n_max} # more and it gains nothing",
        *_GRACE[answers.kind],
        *_volumes(answers.volumes),
        *_FURTHER,
    ]
    return "\n".join(lines) + "\n"


_ENGINE: dict[Kind, list[str]] = {
    "plain": [
        "engine: plain # the command runs as it is; DORM_RANK, DORM_WORLD_SIZE and DORM_PEERS say which worker it is"
    ],
    "pytorch": [
        "engine: torchrun # sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the command is the script, without torchrun",
        "# engine_options: {processes: 8} # workers in each container, where it has several GPUs",
    ],
    "elastic": ["engine: elastic", "elastic: live # members join and leave while the others train"],
}
_GRACE: dict[Kind, list[str]] = {
    "plain": ["grace: 30s # between SIGTERM, at which it saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
    "pytorch": ["grace: 60s # between SIGTERM, at which rank 0 saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
    "elastic": ["grace: 30s # between SIGTERM, at which it saves a checkpoint in DORM_CHECKPOINT_DIR, and SIGKILL"],
}
_FURTHER = [
    "retries: {limit: 3} # how often it is started again after a failure",
    "# steps: 10000 # all of its work, in the steps that it reports in DORM_PROGRESS",
    "# stop_signal: {signal: SIGUSR1, before: 60s} # another signal than SIGTERM, or one more before it; default: SIGTERM",
    "# deadlines: {progress: 15m} # it counts as failed after so long without a sign of work",
    "# env: {OMP_NUM_THREADS: '2'}",
    "# env_file: .env # more variables; those that look like secrets are left out",
    "# requirements: [numpy, einops] # installed once on each node; or requirements_file: requirements.txt or uv.lock",
    "# secrets: {API_KEY_FILE: key} # paths of files that the nodes have for you (dorm agent --secrets)",
    '# require: gpu_type == "h100" # which nodes, by the labels that `dorm nodes -o wide` shows',
]


def _resume(answers: Answers) -> list[str]:
    again = ", ".join(map(_word, (*answers.command, "--resume")))
    return [f"# resume: [{again}] # starts a worker from a checkpoint; default: command"]


def _image(image: str) -> list[str]:
    if image:
        return [f"image: {_word(image)} # holds the program; ignored where nodes run plain processes"]
    return ["# image: python:3.12-slim # for nodes with Docker: it holds the program"]


def _demand(answers: Answers) -> str:
    parts = [f"cpu: {_quantity(answers.cpu)}"]
    parts += [f"memory: {_quantity(answers.memory)}"] if answers.memory else []
    parts += [f"gpu: {answers.gpu}"] if answers.gpu else []
    return ", ".join(parts)


def _volumes(volumes: tuple[tuple[str, str], ...]) -> list[str]:
    if not volumes:
        return ["# volumes: {datasets: /data} # folders that nodes offer; `dorm nodes -o wide` shows them"]
    named = ", ".join(f"{_word(name)}: {_word(path)}" for name, path in volumes)
    return [f"volumes: {{{named}}} # folders that nodes offer, read-only; their paths are in DORM_VOLUME_NAME as well"]


def _quantity(text: str) -> str:
    return text if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else _word(text)


def _word(text: str) -> str:
    """Return a text as YAML, within brackets too.  JSON's quotes are YAML's."""
    plain = _PLAIN.fullmatch(text) and not _NO_TEXT.fullmatch(text)
    return text if plain else json.dumps(text)


# --- what is asked on a terminal --------------------------------------------------------------------------------------


def ask_missing(answers: Answers, given: set[str], check: Callable[[Answers], str]) -> Answers:
    """Return the answers after asking for all that is not `given` as an option.  `check` returns their error, "" for
    none: a wrong answer is asked for again."""
    for field, ask in _QUESTIONS.items():
        if field in given:
            continue
        while True:
            changed = msgspec.structs.replace(answers, **ask(answers))
            if not (wrong := check(changed)):
                answers = changed
                break
            typer.echo(f"  {wrong}", err=True)
    return answers


def _kind(answers: Answers) -> dict[str, Any]:
    for kind in KINDS:
        typer.echo(f"  {kind:<8} {ABOUT[kind]}", err=True)
    return {"kind": _prompt("What does it run", answers.kind, KINDS)}


def _command(answers: Answers) -> dict[str, Any]:
    while True:
        text = _prompt("Command that starts one worker", shlex.join(answers.command))
        try:
            return {"command": tuple(shlex.split(text))}
        except ValueError as error:
            typer.echo(f"  {error}", err=True)


def _sizes(answers: Answers) -> dict[str, Any]:
    least = _count("Smallest number of containers (n_min)", answers.n_min)
    return {
        "n_min": least,
        "n_max": _count("Largest number of containers (n_max)", max(least, answers.n_max)),
    }


def _ask_demand(answers: Answers) -> dict[str, Any]:
    return {
        "cpu": _prompt("Cores of one container", answers.cpu),
        "memory": _prompt("Memory of one container, such as 4GiB", answers.memory or "1GiB"),
        "gpu": _count("GPUs of one container", answers.gpu, least=0),
    }


def _ask_image(answers: Answers) -> dict[str, Any]:
    image = _prompt("Image, for nodes with Docker (- for none)", answers.image or "-")
    return {"image": "" if image == "-" else image}


_QUESTIONS: dict[str, Callable[[Answers], dict[str, Any]]] = {
    "kind": _kind,
    "command": _command,
    "name": lambda answers: {"name": _prompt("Name of the app", answers.name)},
    "sizes": _sizes,
    "demand": _ask_demand,
    "image": _ask_image,
}


def _prompt(text: str, default: str, choices: tuple[str, ...] = ()) -> str:
    while True:
        answer: str = typer.prompt(text, default=default, err=True).strip()
        if not choices or answer in choices:
            return answer
        typer.echo(f"  choose one of {', '.join(choices)}", err=True)


def _count(text: str, default: int, *, least: int = 1) -> int:
    while True:
        answer = _prompt(text, str(default))
        if answer.isdecimal() and int(answer) >= least:
            return int(answer)
        typer.echo(f"  write a whole number of at least {least}", err=True)


# --- spec init --------------------------------------------------------------------------------------------------------

app = typer.Typer(help="Create app specs.", no_args_is_help=True)


class KindChoice(StrEnum):
    """The kind of program that the app runs."""

    plain = "plain"
    pytorch = "pytorch"
    elastic = "elastic"


@app.callback()
def spec() -> None:
    """Create app specs."""


@app.command("init")
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; - prints the spec; default: NAME.yaml.")
    ] = None,
    kind: Annotated[KindChoice | None, typer.Option(help="The kind of program that the app runs.")] = None,
    command: Annotated[
        str | None, typer.Option(help="Command that starts one worker, in quotes, such as 'python train.py'.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the app; default: made from the command.")] = None,
    n_min: Annotated[
        int | None, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option("--n-max", min=1, help="The largest number of containers that it can use.")
    ] = None,
    cpu: Annotated[str | None, typer.Option(help="Cores of one container, such as 2 or 500m.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of one container, such as 4GiB.")] = None,
    gpu: Annotated[int | None, typer.Option(min=0, help="GPUs of one container.")] = None,
    image: Annotated[str | None, typer.Option(help="Image that contains the program, for nodes with Docker.")] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Volume of the nodes and its path in containers; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions; use the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a first spec with comments. It asks a few questions, unless you pass --yes or standard input is not a
    terminal.

    [bold]Examples[/]

      dorm spec init

      dorm spec init train.yaml --kind pytorch --command "python train.py" --n-max 4 --gpu 1 --yes

      dorm spec init - --yes --command "python count.py" | dorm submit - --dry-run
    """

    typed = _words(command) if command is not None else ("python", "train.py")
    chosen = _defaults(
        "plain" if kind is None else kind.value, typed, name, (n_min, n_max), (cpu, memory, gpu), image, volume
    )
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    if asks:
        options = {"kind": kind, "command": command, "name": name, "sizes": n_min or n_max, "image": image}
        options["demand"] = cpu or memory or (gpu is not None)
        chosen = ask_missing(chosen, {field for field, value in options.items() if value}, _wrong)
    if wrong := _wrong(chosen):
        raise WrongUsage(wrong)
    text = written(chosen)
    if str(file) == "-":
        for line in text.splitlines():
            console.print(Text(line), soft_wrap=True)
        return
    path = file or Path(f"{chosen.name}.yaml")
    _write(path, text, force=force)
    progress_console.print(
        Text(f"{path} is written; `dorm submit {path} --dry-run` checks it, `dorm submit {path}` runs it")
    )


def _words(command: str) -> tuple[str, ...]:
    import shlex

    try:
        parts = tuple(shlex.split(command))
    except ValueError as error:
        raise WrongUsage(f"--command: {error}") from None
    if not parts:
        raise WrongUsage("--command: write the program and its arguments, such as 'python train.py'")
    return parts


def _defaults(
    kind: Kind,
    command: tuple[str, ...],
    name: str | None,
    sizes: tuple[int | None, int | None],
    demand: tuple[str | None, str | None, int | None],
    image: str | None,
    volume: list[str] | None,
) -> Answers:
    from dorm.local.commands import made_name

    least = sizes[0] or 1
    most = sizes[1] if sizes[1] is not None else max(least, 1 if kind == "plain" else 4)
    return Answers(
        kind=kind,
        name=name or made_name(command),
        command=command,
        n_min=least,
        n_max=most,
        cpu=demand[0] or "1",
        memory=demand[1] or "",
        gpu=demand[2] or 0,
        image=image or "",
        volumes=tuple(parse_pairs(volume, "volume").items()),
    )


def _wrong(answers: Answers) -> str:
    """Return what a submission of it would be refused for, "" for nothing."""
    from dorm.local.spec_files import parse_spec
    from events.spec import SpecError, check_spec

    try:
        check_spec(parse_spec(written(answers)))
    except SpecError as error:
        return str(error)
    return ""


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x") as out:
            out.write(text)
    except FileExistsError:
        raise Fail(f"{path} exists; choose another FILE, or use --force", USAGE, code="file.exists") from None
    except OSError as error:
        raise Fail(f"{path}: {error.strerror}", code=code_of(error)) from None


# --- schema -----------------------------------------------------------------------------------------------------------


def schema() -> None:
    """Print the JSON Schema of app spec files, for editors and other languages.

    [bold]Example[/]

      dorm schema > dorm-app.schema.json
    """
    from dorm.local.spec_files import file_schema

    show_document(file_schema(), Format.json)
