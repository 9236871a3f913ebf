"""Options of commands that make a spec out of a command line, and the fields that they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.connect import complete_app, complete_engine
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.local.commands import Typed


def complete_field(incomplete: str) -> list[str]:
    """Complete `--set` with the fields of a spec."""
    from events.spec import AppSpec
    from events.spec.editing import NEVER

    names = (name for name in AppSpec.__struct_encode_fields__ if name not in NEVER)
    return [f"{name}=" for name in names if name.startswith(incomplete)]


NMin = Annotated[int, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")]
NMax = Annotated[
    int | None,
    typer.Option("--n-max", min=1, help="The largest number of containers that it can use; default: n_min."),
]
Cpu = Annotated[str, typer.Option(help="Cores of one container, such as 2 or 500m.")]
Memory = Annotated[str | None, typer.Option(help="Memory of one container, such as 4GiB.")]
Gpu = Annotated[int | None, typer.Option(min=1, help="GPUs of one container.")]
Name = Annotated[str | None, typer.Option(help="Name of the app; default: made from the command.")]
Image = Annotated[str | None, typer.Option(help="Image that contains the program, for nodes with Docker.")]
Workdir = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Ship this folder and run in a copy of it; default: the current folder."),
]
NoWorkdir = Annotated[
    bool,
    typer.Option(
        "--no-workdir", help="Ship nothing; run in the current folder itself, or in the image's working directory."
    ),
]
Folder = Annotated[
    str | None,
    typer.Option(help="Ship nothing; run in this folder: an absolute path on every node, or in the image."),
]
Engine = Annotated[
    str,
    typer.Option(help="The engine, such as torchrun; see the field `engine` of specs.", autocompletion=complete_engine),
]
Origin = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="APP[@STEP]",
        help="Start from a copy of this app's checkpoint.",
        autocompletion=complete_app,
    ),
]
Retries = Annotated[int, typer.Option(min=0, help="How often it is restarted after failures.")]
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


class Given(NamedTuple):
    """Options typed with a command, for its spec."""

    env: Sequence[str] | None = None
    env_file: Sequence[str] | None = None
    requirements: str | None = None
    volume: Sequence[str] | None = None
    max_runtime: str | None = None
    after: Sequence[str] | None = None

    def fields(self, note: Callable[[str], None] = lambda text: say(f"note: {text}", error=True)) -> dict[str, Any]:
        """Return the fields of the spec, including the contents of the named files; `note` receives notes for their author.
        Raises WrongUsage, SpecError."""
        for one in self.env or ():
            if "=" not in one:
                raise WrongUsage(f"--env: {one!r} has no value; write {one}=VALUE")
        env = dict(one.split("=", 1) for one in self.env or ())
        found: dict[str, Any] = {"env": env} if env else {}
        if self.env_file or self.requirements or self.volume:
            from dorm.local.spec_settings import read_fields

            found = read_fields(
                Path.cwd(),
                note,
                env=env,
                env_files=self.env_file or (),
                requirements=self.requirements or "",
                volumes=self.volume or (),
            )
        found |= {"max_runtime": self.max_runtime} if self.max_runtime else {}
        return found | ({"after": list(self.after)} if self.after else {})


def command_of(
    words: Sequence[str],
    *,
    cpu: str,
    memory: str | None,
    gpu: int | None,
    workdir: str | None,
    no_workdir: bool,
    folder: str | None,
    **more: Any,
) -> Typed:
    """Return a command that was typed with options of `dorm run`; `more` are further fields of it.  Raises WrongUsage."""
    from dorm.local.commands import Typed

    if not words[0]:
        raise WrongUsage("COMMAND: the first word must be a program's name", code="usage.nothing_to_do")
    if folder is not None and not folder.startswith("/"):
        raise WrongUsage(f"--folder: {folder} is not an absolute path, such as /srv/{folder}")
    if workdir is not None and (no_workdir or folder is not None):
        raise WrongUsage("--workdir ships a folder, and --no-workdir and --folder ship none; leave out one of them")
    return Typed(
        words=tuple(words),
        demand={"cpu": cpu, **({"memory": memory} if memory else {}), **({"gpu": str(gpu)} if gpu else {})},
        folder=folder or "",
        workdir="" if no_workdir or folder else (workdir or "."),
        **more,
    )
