"""`dorm`: all commands."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from dorm.cli import (
    agent,
    apps,
    archive,
    bench,
    completion,
    demo,
    describe,
    events,
    explain,
    log,
    master,
    nodes,
    plan,
    policy,
    replay,
    schema,
    state,
    step,
    story,
    timeline,
    up,
)
from dorm.cli.errors import run_and_exit
from dorm.cli.logs import configure

app = typer.Typer(
    name="dorm",
    help="Share one cluster among many machine-learning apps: each gets a partition of its own, resized while it runs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here: [bold]dorm up[/] in one terminal, [bold]dorm submit app.yaml[/] in another.",
)

for module in (up, apps, describe, explain, story, plan, nodes, events, master, agent, demo, schema, completion, state):
    module.register(app)
app.add_typer(policy.app, name="policy", rich_help_panel="Nodes and the cluster")
app.add_typer(log.app, name="log", rich_help_panel="The log")
archive.register(replay.app)
timeline.register(replay.app)
step.register(replay.app)
app.add_typer(replay.app, name="replay", rich_help_panel="The log")
app.add_typer(bench.app, name="bench", rich_help_panel="More")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"dorm {version('dorm')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What comes before any command; those that run for long say more later on."""
    configure(0, False, quiet_level=logging.WARNING)


def main() -> None:
    """The console script."""
    run_and_exit(app)
