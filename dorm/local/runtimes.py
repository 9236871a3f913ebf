"""Which runtime a cluster on this machine uses: Docker if an engine answers, else plain processes.

A node of plain processes imports nothing of Docker: its library takes longer to import than the agent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.machine import detect, detect_for_engine
from agents.runtime.interface import RuntimeFault
from agents.runtime.process.runtime import ProcessRuntime
from events.errors import DormError
from events.quantities import MEMORY
from events.runtimes import RUNTIMES, WITHOUT_ENGINE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.machine import Detected
    from agents.runtime.interface import Runtime
    from events.runtimes import RuntimeName, WantedRuntime


class EngineError(DormError):
    """The requested runtime is unavailable."""

    code = "docker.unavailable"


class Choice(NamedTuple):
    """A runtime by name, why it was chosen, and how to make one for a node."""

    name: RuntimeName
    note: str
    make: Callable[[NodeConfig, str, Path, Path], Runtime]
    """(config, cluster, root of the node, root of checkpoints) to a runtime that is not open yet."""
    detect: Callable[[], Detected]
    """Function that returns what the runtime's containers may use of this machine.  Blocks, briefly."""


class RuntimeOptions(NamedTuple):
    """What the command or the settings of a node say about its runtime."""

    why: str
    """Reason for a runtime without an engine."""
    engine_url: str | None = None
    trust_apps: bool = False
    tenant: str = ""


async def choose_runtime(
    wanted: WantedRuntime, docker_url: str | None, *, trust_apps: bool = False, tenant: str = ""
) -> Choice:
    """Choose a runtime; `auto` takes the first whose engine answers.  Plain processes serve this tenant, else the first whose
    app runs; with `trust_apps` they serve all.

    Raises EngineError if a runtime was requested and its engine does not answer.
    """
    options = RuntimeOptions("asked for", docker_url, trust_apps, tenant)
    if wanted != "auto":
        choice = await _CHOOSERS[wanted](options)
        if choice is None:
            engine = RUNTIMES[wanted].engine
            raise EngineError(
                f"no {engine} engine answers at {docker_url or 'the usual place'}; start one, "
                f"or use --runtime {WITHOUT_ENGINE}"
            )
        return choice
    engines = [name for name, kind in RUNTIMES.items() if kind.engine]
    none = f"no {' or '.join(RUNTIMES[name].engine for name in engines)} engine answers"
    for name in (*engines, WITHOUT_ENGINE):
        if (choice := await _CHOOSERS[name](options._replace(why=none))) is not None:
            return choice
    raise EngineError(none)


async def _docker(options: RuntimeOptions) -> Choice | None:
    info = await _engine_info(options.engine_url)
    if info is None:
        return None

    from agents.runtime.docker.config import DEFAULT_DISK, Profile, default_memory
    from agents.runtime.docker.engine import Engine
    from agents.runtime.docker.runtime import DockerRuntime

    def make(config: NodeConfig, cluster: str, root: Path, checkpoints: Path) -> Runtime:
        return DockerRuntime(
            config.name,
            root / "containers",
            cluster=cluster,
            url=options.engine_url,
            user=config.container_user,
            checkpoint_root=checkpoints,
            profile=Profile(
                allow=config.allow,
                memory=default_memory(config.capacity.get(MEMORY, 0)),
                images=config.images,
                disk=config.container_disk or DEFAULT_DISK,
            ),
        )

    version, at = info.get("ServerVersion", "of unknown version"), Engine(options.engine_url).url
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


async def _process(options: RuntimeOptions) -> Choice | None:
    def make(config: NodeConfig, cluster: str, root: Path, checkpoints: Path) -> Runtime:
        return ProcessRuntime(config.name, root / "containers", trust_apps=options.trust_apps, tenant=options.tenant)

    return Choice("process", f"plain processes ({options.why}; they limit nothing)", make, detect)


_CHOOSERS: dict[str, Callable[[RuntimeOptions], Awaitable[Choice | None]]] = {"docker": _docker, "process": _process}
"""Choosers by the runtime's name in `events.runtimes.RUNTIMES`."""
