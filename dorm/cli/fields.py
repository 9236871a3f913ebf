"""Options of `dorm run`, `check` and `sweep run` that are fields of a spec, and what is said about the spec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.connect import complete_app, complete_engine
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.local.commands import Typed
    from events.spec import AppSpec


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
Resizable = Annotated[
    str | None,
    typer.Option(
        metavar="auto|never",
        help="never: once started, it keeps its containers; default: auto.",
        autocompletion=lambda: ["auto", "never"],
    ),
]
Retries = Annotated[int, typer.Option(min=0, help="How often it is restarted after failures.")]


def complete_variable(incomplete: str) -> list[str]:
    """Complete `--env` with the variables of this shell."""
    return sorted(name for name in os.environ if name.startswith(incomplete) and not name.startswith("_"))


Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        autocompletion=complete_variable,
        help="Variable; without a value, the one of this shell.  May be repeated.",
    ),
]
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

    def fields(
        self, note: Callable[[str], None] = lambda text: print_line(f"note: {text}", error=True)
    ) -> dict[str, Any]:
        """Return the fields of the spec, including the contents of the named files; `note` receives notes for their author.
        Raises WrongUsage, SpecError."""
        for pair in self.env or ():
            if "=" not in pair and pair not in os.environ:
                raise WrongUsage(
                    f"--env: {pair!r} has no value, and this shell has no such variable; write {pair}=VALUE"
                )
        typed = (pair.partition("=") for pair in self.env or ())
        env = {name: value if sign else os.environ[name] for name, sign, value in typed}
        set_fields: dict[str, Any] = {"env": env} if env else {}
        if self.env_file or self.requirements or self.volume:
            from dorm.local.spec_files import read_fields

            set_fields = read_fields(
                Path.cwd(),
                note,
                env=env,
                env_files=self.env_file or (),
                requirements=self.requirements or "",
                volumes=self.volume or (),
            )
        set_fields |= {"max_runtime": self.max_runtime} if self.max_runtime else {}
        return set_fields | ({"after": list(self.after)} if self.after else {})


def print_findings(spec: AppSpec) -> None:
    """Print what its author should look at before it runs.  Raises SpecError."""
    from events.spec.variables import check_names, findings

    check_names(spec)
    for finding in findings(spec):
        print_line(f"note: {spec.name}: {finding.text}", error=True)


_READ_BY_PROGRAMS = (
    "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TORCH_HOME", "TFDS_DATA_DIR",
    "KERAS_HOME", "NLTK_DATA", "XDG_CACHE_HOME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR", "WANDB_API_KEY",
    "HF_TOKEN", "MLFLOW_TRACKING_URI", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "TOKENIZERS_PARALLELISM",
    "PYTHONHASHSEED", "OMP_NUM_THREADS",
)  # fmt: skip
"""Variables on which the behavior of trainings often depends."""


def left_out_of(spec: AppSpec) -> str:
    """Return in one line which well-known variables of this shell the app does not get, and how it gets them; "" for none."""
    from events.spec.checking import why_secret

    variables = [name for name in _READ_BY_PROGRAMS if os.environ.get(name) and name not in spec.env]
    secret = [name for name in variables if why_secret(name, os.environ[name])]
    ways = {
        "--env {} passes {}": [name for name in variables if name not in (*secret, "CUDA_VISIBLE_DEVICES")],
        "--gpu N gives it GPUs": ["CUDA_VISIBLE_DEVICES"]
        if "CUDA_VISIBLE_DEVICES" in variables and "gpu" not in spec.demand
        else [],
        "`secrets` in its spec gives it a file": [f"{name}" for name in secret if f"{name}_FILE" not in spec.secrets],
    }
    left = [name for names in ways.values() for name in names]
    how = "; ".join(way.format(names[0], "it" if len(names) == 1 else "one") for way, names in ways.items() if names)
    verb = "is" if len(left) == 1 else "are"
    return f"{', '.join(left)} {verb} set in this shell and not in the app's environment: {how}" if left else ""


def print_left_out(spec: AppSpec) -> None:
    """Print which well-known variables of this shell the app does not get, if there are any."""
    if text := left_out_of(spec):
        print_line(f"note: {text}", error=True)


def command_of(
    command: Sequence[str],
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

    if not command[0]:
        raise WrongUsage("COMMAND: the first word must be a program's name", code="usage.nothing_to_do")
    if folder is not None and not folder.startswith("/"):
        raise WrongUsage(f"--folder: {folder} is not an absolute path, such as /srv/{folder}")
    if workdir is not None and (no_workdir or folder is not None):
        raise WrongUsage("--workdir ships a folder, and --no-workdir and --folder ship none; leave out one of them")
    return Typed(
        command=tuple(command),
        demand={"cpu": cpu, **({"memory": memory} if memory else {}), **({"gpu": str(gpu)} if gpu else {})},
        folder=folder or "",
        workdir="" if no_workdir or folder else (workdir or "."),
        **more,
    )
