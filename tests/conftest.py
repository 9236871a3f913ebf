"""Real parts for tests: a NATS server, a Docker engine with the sample apps' image, machines in namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import structlog
from hypothesis import is_hypothesis_test, settings

from compose.engine import Engine
from compose.image import SAMPLES_REF, ensure_samples_image
from tests import wanting
from tests.cpu_times import CpuTimes
from tests.lab.machines.dockerd import why_not
from tests.lab.machines.engines import docker_engine, unavailable
from tests.lab.machines.namespaces import NodeCluster
from tests.lab.machines.nats_server import NatsServer
from tests.policies import any_policy
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
    from pathlib import Path

    from _pytest.terminal import TerminalReporter


# On busy cores, an example may take any time, so none fails because of its duration.
settings.register_profile("patient", settings(), deadline=None, max_examples=tries(13, 100))
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=int, metavar="N", help="print the N most expensive tests, by CPU time")


def pytest_configure(config: pytest.Config) -> None:
    if (shown := config.getoption("--cpu-times")) is not None:
        config.pluginmanager.register(CpuTimes(shown))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-soak` repeats tests that search, with more tries."""
    for item in items:
        used = vars(item.module) if isinstance(item, pytest.Function) else {}
        if "tries" in used or "step" in used or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.search)


def pytest_sessionstart() -> None:
    """Imports and collection leave hardly any garbage, and searching for it takes a quarter of their time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Imported and collected objects stay alive, so later garbage collections skip them.  Tests make objects by the million
    and hardly any cycles, so collections are rare."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> Generator[None]:
    """After all else that is printed, one line says which tests were not run, and why."""
    yield
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    if missed := wanting.line(where[2] for where in skipped if isinstance(where, tuple)):
        terminalreporter.write_line(missed)


@pytest.fixture(scope="session", autouse=True)
def programs_hear_ctrl_c() -> None:
    """A shell starts background jobs with SIGINT ignored, which programs inherit.  A handler is not inherited: programs that
    the tests start begin with SIGINT's default, and the tests themselves still
    ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)


@pytest.fixture(autouse=True)
def logs_go_where_they_went() -> Iterator[None]:
    """A command that runs in this process sends its logs to that test's captured stderr, which is closed afterwards; logging
    in a later test would fail."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def only_policies_of_ours() -> Iterator[None]:
    """Histories register a policy of the tests, which other tests would find among the product's policies."""
    with any_policy.forgotten():
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsServer]:
    """A server for all tests of this process; each test uses its own cluster name, and none stops the server."""
    server = NatsServer(tmp_path_factory.mktemp("nats"), synced=False)
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A separate server for a test that kills it or damages its data."""
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker_host(run_dir: Path) -> AsyncIterator[str]:
    """URL of a Docker engine; tests are skipped without one; in CI, they fail."""
    async with docker_engine(run_dir) as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker_image(docker_host: str) -> str:
    """Name of the sample apps' image, which the engine at `docker_host` has."""
    await ensure_samples_image(docker_host, progress=print)
    return SAMPLES_REF


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker_archive(docker_host: str, run_dir: Path) -> Path:
    """The sample apps' image as a tar file, for further engines."""
    built = await ensure_samples_image(docker_host, progress=print)
    if built.archive is not None:
        return built.archive
    archive = run_dir / f"samples-{os.getpid()}.tar"
    async with Engine(docker_host) as engine:
        await engine.save(built.ref, archive)
    return archive


@pytest_asyncio.fixture
async def node_cluster(docker_archive: Path) -> AsyncIterator[Callable[..., Awaitable[NodeCluster]]]:
    """`await node_cluster(3)` returns a cluster of three, with the sample apps' image on each node."""
    if reason := why_not():
        unavailable(f"no namespaces and engines can be made: {reason}")
    async with contextlib.AsyncExitStack() as clusters:

        async def make(size: int, *, live_restore: bool = False) -> NodeCluster:
            cluster = await clusters.enter_async_context(NodeCluster(size, live_restore=live_restore))

            async def load(url: str) -> None:
                async with Engine(url) as engine:
                    await engine.load(docker_archive)

            async with asyncio.TaskGroup() as loads:
                for node in cluster.nodes:
                    loads.create_task(load(node.docker_url))
            return cluster

        yield make
