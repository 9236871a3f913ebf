"""`dorm spec init`: a first spec, by a few questions."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import console, progress_console
from dorm.cli.settings import parse_pairs
from events.errors import code_of

if TYPE_CHECKING:
    from dorm.cli.authoring.written import Answers, Kind

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
    from dorm.cli.authoring.questions import asked
    from dorm.cli.authoring.written import written

    words = _words(command) if command is not None else ("python", "train.py")
    chosen = _defaults(
        "plain" if kind is None else kind.value, words, name, (n_min, n_max), (cpu, memory, gpu), image, volume
    )
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    if asks:
        options = {"kind": kind, "command": command, "name": name, "sizes": n_min or n_max, "image": image}
        options["demand"] = cpu or memory or (gpu is not None)
        chosen = asked(chosen, {field for field, value in options.items() if value}, _wrong)
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
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise WrongUsage(f"--command: {error}") from None
    if not words:
        raise WrongUsage("--command: write the program and its arguments, such as 'python train.py'")
    return words


def _defaults(
    kind: Kind,
    words: tuple[str, ...],
    name: str | None,
    sizes: tuple[int | None, int | None],
    demand: tuple[str | None, str | None, int | None],
    image: str | None,
    volume: list[str] | None,
) -> Answers:
    from dorm.cli.authoring.written import Answers
    from dorm.local.commands import made_name

    least = sizes[0] or 1
    most = sizes[1] if sizes[1] is not None else max(least, 1 if kind == "plain" else 4)
    return Answers(
        kind=kind,
        name=name or made_name(words),
        command=words,
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
    from dorm.cli.authoring.written import written
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
