"""`dorm completion`: scripts with which a shell completes commands, options, and the names of apps and nodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
