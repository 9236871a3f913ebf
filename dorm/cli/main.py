"""`dorm`: all commands."""

from __future__ import annotations

import typer

from dorm.cli import agent, apps, demo, events, master, nodes, replay, schema, up
from dorm.cli.errors import run_and_exit

app = typer.Typer(
    name="dorm",
    help="Share one cluster among many machine-learning apps: each gets a partition of its own, resized while it runs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here: [bold]dorm up[/] in one terminal, [bold]dorm submit app.yaml[/] in another.",
)

for module in (up, master, agent, apps, nodes, events, schema, demo):
    module.register(app)
app.add_typer(replay.app, name="replay")


def main() -> None:
    """The console script."""
    run_and_exit(app)
