"""Options of commands that make a spec out of a command line, and the fields that they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.connect import complete_app
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.spec import AppSpec


def complete_field(incomplete: str) -> list[str]:
    """Complete `--set` with the fields of a spec."""
    from events.spec import AppSpec
    from events.spec.editing import NEVER

    names = (name for name in AppSpec.__struct_encode_fields__ if name not in NEVER)
    return [f"{name}=" for name in names if name.startswith(incomplete)]


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
            if "=" not in one and one not in os.environ:
                raise WrongUsage(f"--env: {one!r} has no value, and this shell has no such variable; write {one}=VALUE")
        typed = (one.partition("=") for one in self.env or ())
        env = {name: value if sign else os.environ[name] for name, sign, value in typed}
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


def tell_findings(spec: AppSpec) -> None:
    """Print what its author should look at before it runs.  Raises SpecError."""
    from events.spec.variables import check_names, findings

    check_names(spec)
    for one in findings(spec):
        say(f"note: {spec.name}: {one.text}", error=True)


_READ_BY_PROGRAMS = (
    "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TORCH_HOME", "TFDS_DATA_DIR",
    "KERAS_HOME", "NLTK_DATA", "XDG_CACHE_HOME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR", "WANDB_API_KEY",
    "HF_TOKEN", "MLFLOW_TRACKING_URI", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "TOKENIZERS_PARALLELISM",
    "PYTHONHASHSEED", "OMP_NUM_THREADS",
)  # fmt: skip
"""Variables on which the behavior of trainings often depends."""


def tell_left_out(spec: AppSpec) -> None:
    """Print in one line which well-known variables of this shell the app does not get, and how it gets them."""
    from events.spec.secrets import why_secret

    found = [name for name in _READ_BY_PROGRAMS if os.environ.get(name) and name not in spec.env]
    secret = [name for name in found if why_secret(name, os.environ[name])]
    ways = {
        "--env {} passes {}": [name for name in found if name not in (*secret, "CUDA_VISIBLE_DEVICES")],
        "--gpu N gives it GPUs": ["CUDA_VISIBLE_DEVICES"]
        if "CUDA_VISIBLE_DEVICES" in found and "gpu" not in spec.demand
        else [],
        "`secrets` in its spec gives it a file": [f"{name}" for name in secret if f"{name}_FILE" not in spec.secrets],
    }
    left = [name for names in ways.values() for name in names]
    if left:
        how = "; ".join(
            way.format(names[0], "it" if len(names) == 1 else "one") for way, names in ways.items() if names
        )
        verb = "is" if len(left) == 1 else "are"
        say(f"note: {', '.join(left)} {verb} set in this shell and not in the app's environment: {how}", error=True)
