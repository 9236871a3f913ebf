"""Which runtime a cluster on this machine uses: Docker if an engine answers, else plain processes.

A node of plain processes imports nothing of Docker: its library takes longer to import than the agent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agents.machine import detect, detect_for_engine
from agents.runtime.interface import RuntimeFault
from agents.runtime.process.runtime import ProcessRuntime
from events.errors import DormError
from events.quantities import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.machine import Detected
    from agents.runtime.interface import Runtime


class EngineError(DormError):
    """The requested runtime is unavailable."""

    code = "docker.unavailable"


class Choice(NamedTuple):
    """A runtime by name, why it was chosen, and how to make one for a node."""

    name: str
    note: str
    make: Callable[[NodeConfig, str, Path, Path], Runtime]
    """(config, cluster, root of the node, root of checkpoints) to a runtime that is not open yet."""
    detect: Callable[[], Detected]
    """What its containers may use of this machine.  Blocks, briefly."""


async def choose_runtime(
    wanted: Literal["auto", "docker", "process"],
    docker_url: str | None,
    *,
    trust_apps: bool = False,
    tenant: str = "",
) -> Choice:
    """Choose a runtime.  Plain processes serve this tenant, else the first whose app runs; with `trust_apps` they serve all.

    Raises EngineError if `docker` was requested and no engine answers.
    """
    if wanted == "process":
        return _process("asked for", trust_apps, tenant)
    info = await _engine_info(docker_url)
    if info is None:
        if wanted == "docker":
            raise EngineError(
                f"no Docker engine answers at {docker_url or 'the usual place'}; start one, or use --runtime process"
            )
        return _process("no Docker engine answers", trust_apps, tenant)

    from agents.runtime.docker.config import DEFAULT_DISK, Profile, default_memory
    from agents.runtime.docker.engine import Engine
    from agents.runtime.docker.runtime import DockerRuntime

    def make(config: NodeConfig, cluster: str, root: Path, checkpoints: Path) -> Runtime:
        return DockerRuntime(
            config.name,
            root / "containers",
            cluster=cluster,
            url=docker_url,
            user=config.container_user,
            checkpoint_root=checkpoints,
            profile=Profile(
                allow=config.allow,
                memory=default_memory(config.capacity.get(MEMORY, 0)),
                images=config.images,
                disk=config.container_disk or DEFAULT_DISK,
            ),
        )

    version, at = info.get("ServerVersion", "of unknown version"), Engine(docker_url).url
    return Choice("docker", f"Docker {version}", make, partial(detect_for_engine, info, at))


async def _engine_info(url: str | None) -> dict[str, Any] | None:
    # Its library takes a third of a second, which a process node saves.
    from agents.runtime.docker.engine import Engine

    engine = Engine(url)
    try:
        return await engine.open()
    except RuntimeFault:
        return None
    finally:
        await engine.close()


def _process(why: str, trust_apps: bool, tenant: str) -> Choice:
    def make(config: NodeConfig, cluster: str, root: Path, checkpoints: Path) -> Runtime:
        return ProcessRuntime(config.name, root / "containers", trust_apps=trust_apps, tenant=tenant)

    return Choice("process", f"plain processes ({why}; they limit nothing)", make, detect)
