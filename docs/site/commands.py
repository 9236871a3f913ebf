"""The command reference: one page with every command, in the order and the groups of `dorm --help`."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from docs.site.markdown import code, prose, table
from dorm.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# Commands

`dorm COMMAND --help` prints the same. Times are UTC. Exit codes: 0 done, 1 failed or different, 2 wrong usage; commands with
others say so below.
"""

_EXAMPLES = re.compile(r"^\[bold\]Examples?\[/\]$", re.MULTILINE)


def page() -> str:
    """The page, in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(name, command, context) for name, command, context in commands())])


def commands() -> Iterator[tuple[str, Any, typer.Context]]:
    """Every command that can be run, with its full name: `dorm replay verify`."""
    root = get_command(app)
    yield from _below(root, typer.Context(root, info_name="dorm"))


def _below(command: Any, context: typer.Context) -> Iterator[tuple[str, Any, typer.Context]]:
    if not hasattr(command, "list_commands"):
        yield context.command_path, command, context
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from _below(inner, typer.Context(inner, info_name=name, parent=context))


def _section(name: str, command: Any, context: typer.Context) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}", *_described(inspect.cleandoc(command.help or "")), f"```text\n{usage}\n```"]
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:
            what, meaning = record
            rows.append((code(what), prose(meaning.replace("\\[", "["))))
    parts.append(table(("argument or option", "meaning"), rows))
    return "\n\n".join(parts)


def _described(text: str) -> Iterator[str]:
    """The help text, with its examples as a block of commands."""
    described, *examples = _EXAMPLES.split(text)
    yield prose(described.strip())
    for part in examples:
        indented = re.match(r"\s*((?:^(?:[ ]{2}.*)?\n?)+)", part, re.MULTILINE)
        assert indented is not None
        lines = [line.strip() for line in indented[1].splitlines() if line.strip()]
        yield "```console\n" + "\n".join(_prompted(lines)) + "\n```"
        if rest := part[indented.end() :].strip():
            yield prose(rest)


def _prompted(lines: list[str]) -> Iterator[str]:
    continued = False
    for line in lines:
        yield f"    {line}" if continued else f"$ {line}"
        continued = line.endswith("\\")
