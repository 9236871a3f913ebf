"""Commands of the laboratory: in their places where it is installed, and one line of help where it is not."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from dorm.cli import laboratory
from dorm.cli.errors import Fail
from tests.errors import raises

if TYPE_CHECKING:
    import pytest


class _Laboratory:
    """An installed distribution whose entry point names something."""

    def __init__(self, value: str) -> None:
        self.entry_points = metadata.EntryPoints([metadata.EntryPoint("bench", value, laboratory.GROUP)])


def _benches(monkeypatch: pytest.MonkeyPatch, distribution: _Laboratory | None) -> Any:
    """The commands of a `dorm bench` whose product has one bench."""

    def find(name: str) -> _Laboratory:
        if distribution is None:
            raise metadata.PackageNotFoundError(name)
        return distribution

    monkeypatch.setattr(metadata, "distribution", find)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0")
    app = typer.Typer()
    app.command("submit")(lambda: None)
    laboratory.add_benches(app)
    return get_command(app)


def _run(group: Any, *arguments: str) -> None:
    group.main(list(arguments), prog_name="dorm bench", standalone_mode=False)


def test_every_bench_is_listed_in_its_place() -> None:
    from dorm.cli.bench.commands import app

    assert list(get_command(app).commands) == list(laboratory.BENCHES)  # type: ignore[attr-defined]


def test_without_the_laboratory_its_commands_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _benches(monkeypatch, None)
    assert {name for name, command in group.commands.items() if not command.hidden} == {"submit"}
    for arguments in (["optimizer"], ["optimizer", "--help"], ["elastic", "--quick", "x"]):
        with raises(Fail, "package.missing", f"`dorm bench {arguments[0]}`", "pip install 'dorm[lab]'"):
            _run(group, *arguments)


def test_a_laboratory_of_another_version_breaks_only_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _benches(monkeypatch, _Laboratory("dorm.cli.errors:nothing_of_this_name"))
    _run(group, "submit")
    with raises(Fail, "laboratory.broken", "`dorm bench optimizer`", "dorm-lab 0.0"):
        _run(group, "optimizer")
