"""What `dorm spec init` asks on a terminal: a few questions, each with an answer that Enter takes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from dorm.cli.authoring.written import ABOUT, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.cli.authoring.written import Answers


def asked(answers: Answers, given: set[str], check: Callable[[Answers], str]) -> Answers:
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


def _demand(answers: Answers) -> dict[str, Any]:
    return {
        "cpu": _prompt("Cores of one container", answers.cpu),
        "memory": _prompt("Memory of one container, such as 4GiB", answers.memory or "1GiB"),
        "gpu": _count("GPUs of one container", answers.gpu, least=0),
    }


def _image(answers: Answers) -> dict[str, Any]:
    image = _prompt("Image, for nodes with Docker (- for none)", answers.image or "-")
    return {"image": "" if image == "-" else image}


_QUESTIONS: dict[str, Callable[[Answers], dict[str, Any]]] = {
    "kind": _kind,
    "command": _command,
    "name": lambda answers: {"name": _prompt("Name of the app", answers.name)},
    "sizes": _sizes,
    "demand": _demand,
    "image": _image,
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
