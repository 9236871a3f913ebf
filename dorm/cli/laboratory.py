"""Commands of the laboratory, the distribution `dorm-lab`: found by its entry points, so that nothing of it is imported here.

Its entry points in the group `dorm.commands` name functions that take a typer app and add commands to it: `simulate` adds
`dorm simulate`, `bench` adds benches to `dorm bench`.  If the distribution is not installed, each of these commands says
how to install it, and no help lists it.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from dorm.cli.errors import Fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import typer
    from typer.models import CommandInfo

DISTRIBUTION = "dorm-lab"
GROUP = "dorm.commands"
BENCHES = (
    "codec", "exec", "submit", "trust", "resize", "pause", "calibration", "replay", "simulate", "optimizer", "optimizer-scale",
    "api", "elastic", "evaluation", "flood", "oasis", "run", "scale", "year",
)  # fmt: skip
"""All benches in the order of `dorm bench --help`, those of the laboratory among the others."""


def register(app: typer.Typer) -> None:
    """Add `dorm simulate`."""
    _add("simulate", app, ["simulate"], "dorm")


def add_benches(app: typer.Typer) -> None:
    """Add the laboratory's benches to the others, in the order of `BENCHES`."""
    own = {_name(command) for command in app.registered_commands}
    _add("bench", app, [name for name in BENCHES if name not in own], "dorm bench")
    app.registered_commands.sort(key=lambda command: BENCHES.index(_name(command)))


def _name(command: CommandInfo) -> str:
    assert command.callback is not None, "every bench has a function"
    return command.name or command.callback.__name__.replace("_", "-")


def _add(point: str, app: typer.Typer, names: Sequence[str], program: str) -> None:
    try:
        register = _registered(point)
    except Exception as error:  # Another version of the laboratory may import what is not here.
        failure: Exception | None = error
    else:
        failure = None
        if register is not None:
            register(app)
            return
    for name in names:
        _stand_in(app, f"{program} {name}", failure)


def _registered(point: str) -> Callable[[typer.Typer], None] | None:
    """Return the function of an entry point; None if the laboratory is not installed."""
    try:
        points = metadata.distribution(DISTRIBUTION).entry_points
    except metadata.PackageNotFoundError:
        return None
    register: Callable[[typer.Typer], None] = points.select(group=GROUP)[point].load()
    return register


def _stand_in(app: typer.Typer, command: str, failure: Exception | None) -> None:
    """Add a hidden command that takes any arguments and says why it does nothing."""

    def refuse() -> None:
        if failure is None:
            text = f"`{command}` is part of the laboratory, which is not installed: pip install 'dorm[lab]'"
            raise Fail(text, code="package.missing")
        versions = f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)} with dorm {metadata.version('dorm')}"
        raise Fail(f"`{command}` cannot be loaded from {versions}: {failure}", code="laboratory.broken")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    name = command.rpartition(" ")[2]
    app.command(name, hidden=True, add_help_option=False, context_settings=anything)(refuse)
