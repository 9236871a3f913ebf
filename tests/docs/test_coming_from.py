"""The commands, options and fields that the pages for newcomers name exist: verbs change more often than such pages."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from dorm.cli.main import app
from events.spec import spec_schema
from tests.docs.shown import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = sorted((REPOSITORY / "docs" / "coming-from").glob("*.md"))
_SPAN = re.compile(r"`(dorm [^`]+)`")
_FIELD = re.compile(r"`([a-z_]+):(?: [^`]*)?`")
OF_FILES = {"array", "env_file", "mode", "parallel", "requirements_file", "sweep"}
"""Fields of files that commands read before they submit a spec."""
OF_OTHERS = {"build", "depends_on", "restart", "restartPolicy", "runtime_env", "stop", "when"}
"""Fields of other tools' files, or within fields, that the pages show in the same form."""


def named(page: Path) -> Iterator[list[str]]:
    for span in _SPAN.findall(page.read_text()):
        yield shlex.split(span.replace("…", ""))[1:]


def found(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that these words name, and the words after it."""
    command: Any = get_command(app)
    while words and hasattr(command, "get_command"):
        inner = command.get_command(None, words[0])
        assert inner is not None, f"there is no `dorm {words[0]}`"
        command, words = inner, words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    for words in named(page):
        command, rest = found(words)
        mine = rest[: rest.index("--")] if "--" in rest else rest
        options = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in mine if word.startswith("-") and word.partition("=")[0] not in options]
        assert not unknown, f"`dorm {' '.join(words)}`: {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fields_of_specs_exist(page: Path) -> None:
    known = set(spec_schema()["properties"]) | OF_FILES | OF_OTHERS
    here = [row.split("|")[-2] if row.count("|") > 2 else row for row in page.read_text().splitlines() if "|" in row]
    assert [name for name in _FIELD.findall("\n".join(here)) if name not in known] == []
