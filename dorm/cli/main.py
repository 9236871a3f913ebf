"""`dorm`: all commands, each imported when it is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_group

from dorm.cli.errors import run_and_exit

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMMANDS = {
    "apps.run": ("run",),
    "check": ("check",),
    "apps.commands": ("submit", "ps", "update", "cancel", "kill"),
    "apps.logs": ("logs",),
    "outputs.cp": ("cp",),
    "outputs.checkpoints": ("checkpoints",),
    "containers.exec": ("exec",),
    "containers.shell": ("shell",),
    "containers.port_forward": ("port-forward",),
    "apps.wait": ("wait",),
    "lifecycle.scale": ("scale",),
    "lifecycle.edit": ("edit",),
    "lifecycle.restart": ("restart",),
    "lifecycle.retry": ("retry",),
    "gates.hold": ("hold",),
    "gates.release": ("release",),
    "apps.describe": ("describe",),
    "apps.explain": ("explain",),
    "apps.story": ("story",),
    "apps.compare": ("compare",),
    "past.history": ("history",),
    "apps.plan": ("plan",),
    "cluster.up": ("up",),
    "operating.requests": ("drain", "pause", "resume"),
    "cluster.top": ("top",),
    "log.events": ("events",),
    "cluster.master": ("master",),
    "cluster.masters": ("masters",),
    "operating.doctor": ("doctor",),
    "cluster.serve": ("serve",),
    "cluster.dashboard": ("dashboard",),
    "cluster.agent": ("agent",),
    "simulation.simulate": ("simulate",),
    "simulation.whatif": ("whatif",),
    "simulation.shadow": ("shadow",),
    "cluster.demo": ("demo",),
    "deploy.backup": ("backup",),
    "trust.init": ("init",),
    "trust.views": ("views",),
    "apps.schema": ("schema",),
    "completion": ("completion",),
    "replay.state": ("state", "diff"),
    "replay.usage": ("usage",),
    "replay.incident": ("incident",),
}
"""Commands that a module of this package registers, in listing order."""
_GROUPS = {
    "project.files": ("files", "Apps"),
    "sweeps.commands": ("sweep", "Apps"),
    "authoring.commands": ("spec", "Apps"),
    "operating.nodes": ("nodes", "Nodes and the cluster"),
    "cluster.policy": ("policy", "Nodes and the cluster"),
    "cluster.tokens": ("token", "Nodes and the cluster"),
    "trust.users": ("user", "Users and access"),
    "trust.nodes": ("node", "Users and access"),
    "trust.contexts": ("context", "Users and access"),
    "deploy.commands": ("deploy", "Nodes and the cluster"),
    "webhooks.commands": ("webhooks", "Nodes and the cluster"),
    "log.commands": ("log", "The log"),
    "replay.commands": ("replay", "The log"),
    "export.traces": ("export", "The log"),
    "bench.commands": ("bench", "More"),
}
"""By module: the group of commands that its `app` is, and the panel that lists the group."""
_MODULE_OF = {name: module for module, names in _COMMANDS.items() for name in names} | {
    name: module for module, (name, _) in _GROUPS.items()
}


class _OnDemand(TyperGroup):
    """Imports a command's module when it is run: importing all of them takes longer than most commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        for module in dict.fromkeys(_MODULE_OF.values()):
            self._import(module)
        return [*_MODULE_OF]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULE_OF:
            self.list_commands(ctx)  # So that similar names can be suggested.
        elif cmd_name not in self.commands:
            self._import(_MODULE_OF[cmd_name])
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and ctx is not None:
            for one in (command, *getattr(command, "commands", {}).values()):
                _show_no_type(one.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from dorm.cli.apps.verbs import meant

        try:
            return super().resolve_command(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:  # The library's class for an unknown command is not public.
            if args and (instead := meant(args[0])) and hasattr(error, "message"):
                error.message = f"No such command {args[0]!r}; use {instead}"
            raise

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _show_no_type(params)
        return params

    def _import(self, name: str) -> None:
        made = typer.Typer(rich_markup_mode="rich")
        module = import_module(f"dorm.cli.{name}")
        if name in _GROUPS:
            group, panel = _GROUPS[name]
            made.add_typer(module.app, name=group, rich_help_panel=panel)
        else:
            module.register(made)
        for one, command in get_group(made).commands.items():
            self.commands.setdefault(one, command)


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
