"""The program `dorm`: one table of all commands, each of which is imported when it is run, and `dorm completion`.

Importing all commands takes longer than most of them take, so only help, completion of a command's name and a mistyped name
import them all."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_group

from dorm.cli.errors import run_and_exit

if TYPE_CHECKING:
    from collections.abc import Iterable


COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("dorm.cli.run:run_app", "Apps"),
    "check": ("dorm.cli.check:check", "Apps"),
    "submit": ("dorm.cli.apps:submit", "Apps"),
    "ps": ("dorm.cli.apps:ps", "Apps"),
    "update": ("dorm.cli.apps:update", "Apps"),
    "cancel": ("dorm.cli.apps:cancel", "Apps"),
    "kill": ("dorm.cli.apps:kill", "Apps"),
    "logs": ("dorm.cli.apps:logs", "Apps"),
    "cp": ("dorm.cli.outputs:copy", "Apps"),
    "checkpoints": ("dorm.cli.outputs:list_checkpoints", "Apps"),
    "exec": ("dorm.cli.sessions:exec_command", "Inside containers"),
    "shell": ("dorm.cli.sessions:shell", "Inside containers"),
    "port-forward": ("dorm.cli.sessions:port_forward", "Inside containers"),
    "wait": ("dorm.cli.wait:wait", "Apps"),
    "scale": ("dorm.cli.lifecycle:scale", "Apps"),
    "edit": ("dorm.cli.lifecycle:edit", "Apps"),
    "restart": ("dorm.cli.lifecycle:restart", "Apps"),
    "retry": ("dorm.cli.lifecycle:retry", "Apps"),
    "hold": ("dorm.cli.lifecycle:hold", "Apps"),
    "release": ("dorm.cli.lifecycle:release", "Apps"),
    "describe": ("dorm.cli.apps:describe_app", "Apps"),
    "explain": ("dorm.cli.explain:explain", "Apps"),
    "story": ("dorm.cli.explain:story", "Apps"),
    "compare": ("dorm.cli.history:compare", "Apps"),
    "history": ("dorm.cli.history:history", "Apps"),
    "plan": ("dorm.cli.plan:plan", "Apps"),
    "up": ("dorm.cli.up:up", "Nodes and the cluster"),
    "drain": ("dorm.cli.nodes:drain", "Nodes and the cluster"),
    "pause": ("dorm.cli.nodes:pause", "Nodes and the cluster"),
    "resume": ("dorm.cli.nodes:resume", "Nodes and the cluster"),
    "top": ("dorm.cli.top:top", "Nodes and the cluster"),
    "events": ("dorm.cli.events:events", "The log"),
    "master": ("dorm.cli.master:master", "Nodes and the cluster"),
    "masters": ("dorm.cli.master:masters", "Nodes and the cluster"),
    "doctor": ("dorm.cli.doctor:doctor", "Nodes and the cluster"),
    "serve": ("dorm.cli.serve:serve", "Nodes and the cluster"),
    "dashboard": ("dorm.cli.serve:dashboard", "Nodes and the cluster"),
    "agent": ("dorm.cli.agent:agent", "Nodes and the cluster"),
    "simulate": ("dorm.cli.laboratory:register", "What if"),
    "whatif": ("dorm.cli.whatif:whatif", "What if"),
    "shadow": ("dorm.cli.shadow:shadow", "What if"),
    "demo": ("dorm.cli.demo:demo", "More"),
    "backup": ("dorm.cli.deploy:backup", "The log"),
    "init": ("dorm.cli.trust:init", "Users and access"),
    "views": ("dorm.cli.trust:views", "Users and access"),
    "schema": ("dorm.cli.spec:schema", "More"),
    "completion": ("dorm.cli.main:completion", "More"),
    "state": ("dorm.cli.states:state", "The log"),
    "diff": ("dorm.cli.states:diff", "The log"),
    "usage": ("dorm.cli.usage:usage", "The log"),
    "incident": ("dorm.cli.exports:incident", "The log"),
    "files": ("dorm.cli.project:app", "Apps"),
    "sweep": ("dorm.cli.sweeps:app", "Apps"),
    "spec": ("dorm.cli.spec:app", "Apps"),
    "nodes": ("dorm.cli.nodes:app", "Nodes and the cluster"),
    "policy": ("dorm.cli.policy:app", "Nodes and the cluster"),
    "token": ("dorm.cli.serve:tokens", "Nodes and the cluster"),
    "user": ("dorm.cli.trust:users", "Users and access"),
    "node": ("dorm.cli.trust:nodes", "Users and access"),
    "context": ("dorm.cli.trust:contexts", "Users and access"),
    "deploy": ("dorm.cli.deploy:app", "Nodes and the cluster"),
    "webhooks": ("dorm.cli.webhooks:app", "Nodes and the cluster"),
    "log": ("dorm.cli.log:app", "The log"),
    "replay": ("dorm.cli.replay:app", "The log"),
    "export": ("dorm.cli.exports:app", "The log"),
    "bench": ("dorm.cli.bench.commands:app", "More"),
}
"""Every command and group of commands, in the order of help: what it is, and the panel that lists it.

What it is: a function that is the command, a typer application whose commands are the group, or a function `register` that
adds the command to the application that it gets, as entry points of other distributions do."""


class _OnDemand(TyperGroup):
    """Imports a command's module when it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name in COMMANDS:
            self._import(name)
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            self._import(cmd_name)
        else:
            self.list_commands(ctx)  # So that similar names can be suggested.
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and ctx is not None:
            for each in (command, *getattr(command, "commands", {}).values()):
                _show_no_type(each.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from dorm.cli.verbs import replacement_for

        try:
            return super().resolve_command(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:  # The library's class for an unknown command is not public.
            if args and (instead := replacement_for(args[0])) and hasattr(error, "message"):
                error.message = f"No such command {args[0]!r}; use {instead}"
            raise

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _show_no_type(params)
        return params

    def _import(self, name: str) -> None:
        if name in self.commands:
            return
        place, panel = COMMANDS[name]
        module, _, attribute = place.partition(":")
        imported = getattr(import_module(module), attribute)
        made = typer.Typer(rich_markup_mode="rich")
        if isinstance(imported, typer.Typer):
            made.add_typer(imported, name=name, rich_help_panel=panel)
        elif attribute == "register":
            imported(made)
        else:
            made.command(name, rich_help_panel=panel, **getattr(imported, "settings", {}))(imported)
        self.commands.update(get_group(made).commands)


def _show_no_type(params: Iterable[Any]) -> None:
    """Help shows each option's value.  A flag has none, for which the library would print `<bool>`, or `<int>` if it
    counts."""
    for param in params:
        if isinstance(param, TyperOption) and (param.is_flag or param.count):
            param.metavar = ""


app = typer.Typer(
    name="dorm",
    cls=_OnDemand,
    help="Share one cluster among many machine-learning apps. Each app gets its own partition, "
    "which is resized while it runs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here: [bold]dorm up[/] in one terminal, [bold]dorm run -- python train.py[/] in another.",
)


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
    """Options before any command."""


def main() -> None:
    """The console script."""
    run_and_exit(app)


# --- completion -------------------------------------------------------------------------------------------------------


class Shell(StrEnum):
    """Supported shells."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a script that completes commands and the names of apps and nodes in your shell.

    [bold]Examples[/]

      dorm completion bash > ~/.local/share/bash-completion/completions/dorm

      dorm completion zsh > ~/.zfunc/_dorm

      dorm completion fish > ~/.config/fish/completions/dorm.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # has no public name

    print(get_completion_script(prog_name="dorm", complete_var="_DORM_COMPLETE", shell=shell.value))
