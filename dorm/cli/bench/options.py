"""Options that several benches have: which runtimes they measure, and by which Docker engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class RuntimeWanted(StrEnum):
    """Which runtimes to measure."""

    auto = "auto"
    docker = "docker"
    process = "process"
    both = "both"


Runtime = Annotated[RuntimeWanted, typer.Option(help="auto: processes, and also Docker if an engine answers.")]
Docker = Annotated[
    str | None, typer.Option(envvar="DOCKER_HOST", help="Docker engine, such as unix:///var/run/docker.sock.")
]
