"""How long `dorm exec APP -- true` takes, on processes and on Docker, compared with the same command without Dorm.

    direct   the command as a child of this process; in Docker an exec over the engine's own API
    exec     the same as a session of a client that is connected: found on the log, started, ended, and both on the log
    command  `dorm exec` as a user types it, with Python's start, imports and connection
    python   `python -c pass`, which is the part of that which any command in Python takes

They take turns in each round, so other load affects all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from agents.runtime.docker.config import LABEL_CLUSTER
from agents.runtime.docker.engine import Engine
from compose.image import SAMPLES_REF
from dorm.bench import BenchError
from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster, runtimes
from dorm.bench.report import Report, figure, percentile, this_machine
from dorm.client.sessions import Session, running_place
from events.sessions import Ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dorm.bench.cluster import RuntimeName, Wanted
    from dorm.bench.report import Figure, Progress
    from dorm.core.state import State
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event

_COMMAND = "true"
_APP = "entered"
_SPEC: dict[str, Any] = {
    "name": _APP,
    "image": SAMPLES_REF,
    "command": ["sleep", "3600"],
    "demand": {"cpu": "100m", "memory": "64MiB"},
    "n_max": 1,
    "grace": "1s",
}
_DORM = (sys.executable, "-c", "from dorm.cli.main import main; main()")
_LONGEST_S = 60.0
_NOT_COUNTED = 3
"""Rounds before measuring, while caches fill."""


async def bench_exec(*, runs: int, commands: int, wanted: Wanted, docker_url: str | None, progress: Progress) -> Report:
    """Measure `runs` sessions for each runtime, and in the first rounds `commands` times the command line.  Raises BenchError
    and what a cluster raises that can't start."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    measured = await runtimes(wanted, docker_url, progress)
    for runtime in measured:
        async with bench_cluster(runtime, docker_url) as cluster, _direct(runtime, docker_url, cluster) as direct:
            work = _measure(cluster, direct, runtime, runs, commands, progress)
            for name, seconds in (await attended(cluster, work)).items():
                for percent in (50, 99):
                    figures[f"{runtime}_{name}_p{percent}_s"] = figure(percentile(seconds, percent), "s")
    return Report(
        bench="exec",
        machine=machine,
        settings={
            "runs": runs,
            "commands": commands,
            "command": _COMMAND,
            "runtimes": measured,
            "nodes": NODES,
            "node_capacity": CAPACITY,
            "clock": "monotonic, of the process that asks",
        },
        figures=figures,
    )


async def _measure(
    cluster: LocalCluster,
    direct: Callable[[], Awaitable[None]],
    runtime: RuntimeName,
    runs: int,
    commands: int,
    progress: Progress,
) -> dict[str, list[float]]:
    """Return seconds by kind of measurement."""
    await _started(cluster)

    async def session() -> None:
        await _session(cluster)

    env = {**os.environ, "DORM_URL": cluster.server.url, "DORM_CLUSTER": cluster.options.cluster}
    for _ in range(_NOT_COUNTED):
        await direct()
        await session()
    times: dict[str, list[float]] = {"direct": [], "exec": []}
    for number in range(runs):
        if number % 20 == 0:
            progress(f"{runtime}: session {number + 1} of {runs}")
        times["direct"].append(await _timed(direct))
        times["exec"].append(await _timed(session))
    for number in range(commands):
        progress(f"{runtime}: command {number + 1} of {commands}")
        times.setdefault("python", []).append(await _timed(lambda: _child((sys.executable, "-c", "pass"), env)))
        times.setdefault("command", []).append(
            await _timed(lambda: _child((*_DORM, "exec", "-n", _APP, "--", _COMMAND), env))
        )
    return times


async def _started(cluster: LocalCluster) -> None:
    """Submit the app, and wait until it runs."""
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        submitted = await cluster.client.submit(_SPEC, answer_timeout=_LONGEST_S)

        def runs(state: State, _: Event) -> bool:
            app = state.apps.get(submitted.id)
            return app is not None and app.settled

        await watch.until(runs, f"the start of {_APP}", timeout=_LONGEST_S)


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(_LONGEST_S):
        await work()
    return clock() - began


async def _session(cluster: LocalCluster) -> None:
    """Run the command in the app's container, as a client that is connected.  Raises BenchError if it fails."""
    session = Session(cluster.client, running_place(await cluster.client.app(_APP)), "exec", [_COMMAND])
    async with contextlib.aclosing(session.answers()) as answers:
        async for answer in answers:
            if isinstance(answer, Ended) and (answer.exit_code or answer.code):
                raise BenchError(f"`{_COMMAND}` in a container failed: {answer.reason}", code="bench.wrong_answer")


async def _child(command: tuple[str, ...], env: dict[str, str] | None = None) -> None:
    """Run a command here.  Raises BenchError if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BenchError(
            f"`{' '.join(command[-4:])}` failed: {output.decode(errors='replace').strip()[-300:]}",
            code="bench.wrong_answer",
        )


@contextlib.asynccontextmanager
async def _direct(
    runtime: RuntimeName, docker_url: str | None, cluster: LocalCluster
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield a function that runs the command without Dorm."""
    if runtime == "process":
        yield lambda: _child((_COMMAND,))
        return
    engine = Engine(docker_url)
    await engine.open()
    known = list[str]()

    async def run() -> None:
        if not known:
            known.extend(
                summary["Id"] for summary in await engine.list((f"{LABEL_CLUSTER}={cluster.options.cluster}",))
            )
        exec_id = await engine.exec_create(known[0], (_COMMAND,))
        ended, _ = await engine.exec_start(exec_id, _LONGEST_S, 0)
        if not ended or (await engine.exec_inspect(exec_id))["ExitCode"]:
            raise BenchError(f"`{_COMMAND}` failed in the engine's own exec", code="bench.wrong_answer")

    try:
        yield run
    finally:
        await engine.close()
