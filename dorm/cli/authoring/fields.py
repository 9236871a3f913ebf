"""Options of commands that make a spec out of a command line, and the fields that they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.connect import complete_app
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence


def complete_field(incomplete: str) -> list[str]:
    """Complete `--set` with the fields of a spec."""
    from events.spec import AppSpec
    from events.spec.editing import NEVER

    names = (name for name in AppSpec.__struct_encode_fields__ if name not in NEVER)
    return [f"{name}=" for name in names if name.startswith(incomplete)]


Env = Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Variable; may be repeated.")]
EnvFiles = Annotated[
    list[str] | None,
    typer.Option("--env-file", metavar="FILE", help="File of variables, such as .env; may be repeated."),
]
Requirements = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="requirements.txt or uv.lock: each node builds an environment with these packages once."
    ),
]
Volumes = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="NAME[:PATH][:rw]",
        help="Volume that nodes offer, at this path in Docker; its path is in DORM_VOLUME_NAME.  May be repeated.",
    ),
]
MaxRuntime = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Cancel it after it has run for so long, such as 12h.")
]
After = Annotated[
    list[str] | None,
    typer.Option(
        metavar="APP", help="Start it once this app has completed; may be repeated.", autocompletion=complete_app
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete_field,
        help="Any other field of a spec: weight=2, python=3.12, demand.fpga=1.  May be repeated.",
    ),
]

ShowIgnored = Annotated[
    bool,
    typer.Option("--show-ignored", help="List what is left out of the shipped folder, and by which rule."),
]


class Given(NamedTuple):
    """Options typed with a command, for its spec."""

    env: Sequence[str] | None = None
    env_file: Sequence[str] | None = None
    requirements: str | None = None
    volume: Sequence[str] | None = None
    max_runtime: str | None = None
    after: Sequence[str] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the spec, including the contents of the named files.  Raises WrongUsage, SpecError."""
        for one in self.env or ():
            if "=" not in one:
                raise WrongUsage(f"--env: {one!r} has no value; write {one}=VALUE")
        env = dict(one.split("=", 1) for one in self.env or ())
        found: dict[str, Any] = {"env": env} if env else {}
        if self.env_file or self.requirements or self.volume:
            from dorm.local.spec_settings import read_fields

            found = read_fields(
                Path.cwd(),
                lambda text: say(f"note: {text}", error=True),
                env=env,
                env_files=self.env_file or (),
                requirements=self.requirements or "",
                volumes=self.volume or (),
            )
        found |= {"max_runtime": self.max_runtime} if self.max_runtime else {}
        return found | ({"after": list(self.after)} if self.after else {})
