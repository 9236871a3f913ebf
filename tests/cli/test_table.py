"""The table of commands, and what a new one needs: a function, a line in the table, and a section in the documentation."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import typer

from docs.site.commands import commands
from dorm.cli.main import COMMANDS, app

if TYPE_CHECKING:
    from pathlib import Path

_VERB = '''
from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import Format, Output


@command(user=True)
async def greet(
    cx: Cluster,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names.")],
    output: Output = Format.table,
) -> None:
    """Greet.

    [bold]Example[/]

      dorm greet ada
    """
    if "nobody" in names:
        raise WrongUsage("nobody is no name", code="usage.conflict")
    target = cx.target()
    shown = {"names": names, "user": cx.user, "output": output.value, **target._asdict()}
    sys.stdout.write(json.dumps(shown))
'''


@pytest.fixture
def greet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb in one module and one line of the table."""
    (tmp_path / "new_verb.py").write_text(_VERB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DORM_HOME", str(tmp_path))
    for option in ("URL", "CLUSTER", "USER", "CONTEXT", "CREDENTIALS", "ARCHIVES"):
        monkeypatch.delenv(f"DORM_{option}", raising=False)
    monkeypatch.setitem(COMMANDS, "greet", ("new_verb:greet", "Apps"))


def run(*words: str) -> Any:
    return app([*words], prog_name="dorm", standalone_mode=False)


@pytest.mark.usefixtures("greet")
def test_a_new_verb_is_a_function_and_a_line_of_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORM_ARCHIVES", "/mnt/copies")
    run("greet", "ada", "grace", "--url", "nats://h:1", "--cluster", "lab", "--user", "olga", "-o", "json")
    assert json.loads(capsys.readouterr().out) == {
        "names": ["ada", "grace"], "user": "olga", "output": "json", "url": "nats://h:1", "cluster": "lab",
        "credentials": "", "folder": "", "named": False, "archives": "/mnt/copies",
    }  # fmt: skip
    run("greet", "--help")
    shown = capsys.readouterr().out
    places = [shown.index(f"--{name}") for name in ("output", "context", "credentials", "archives", "url", "cluster")]
    assert places == sorted(places)
    assert shown.index("--cluster") < shown.index("--user")


@pytest.mark.usefixtures("greet")
def test_what_a_verb_raises_names_its_command() -> None:
    with pytest.raises(typer.BadParameter) as caught:
        run("greet", "nobody")
    context: Any = caught.value.ctx
    assert context.command_path == "dorm greet"


def test_every_line_of_the_table_leads_to_a_command() -> None:
    panels = {
        "Apps", "Inside containers", "Nodes and the cluster", "What if", "Users and access", "The log", "More",
    }  # fmt: skip
    for name, (place, panel) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        function = getattr(import_module(module), attribute)
        assert isinstance(function, typer.Typer) or callable(function), name
        assert panel in panels, name


def test_every_command_has_help_with_an_example() -> None:
    without = [name for name, command, _ in commands() if "[bold]Example" not in (command.help or "")]
    assert without == ["dorm replay state"], "its help names `dorm state`"


def test_options_of_a_cluster_are_those_of_its_decorator() -> None:
    """A command that has one of them has all, so no command can forget who it is on a cluster."""
    names = {"context", "credentials", "archives", "url", "cluster"}
    partly = {}
    for name, command, _ in commands():
        own = names & {param.name for param in command.params}
        if "url" in own and own != names:
            partly[name] = own
    assert partly == {}
    assert inspect.signature(import_module("dorm.cli.apps").ps).parameters.keys() >= names
