"""Benches on real clusters: a few apps or resizes each, and nothing left behind, however they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from agents.runtime.docker.config import LABEL_CLUSTER
from agents.runtime.docker.engine import Engine
from dorm.bench import BenchError
from dorm.bench import submit as submit_bench
from dorm.bench.cluster import runtimes
from dorm.bench.exec import bench_exec
from dorm.bench.flood import bench_flood
from dorm.bench.resize import bench_resize
from dorm.bench.submit import bench_submit
from dorm.local.runtimes import EngineError
from tests.bench.test_report import checked
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "unix:///nonexistent/docker.sock"
SUBMIT = ("submit_to_started", "submit_to_started_beyond_quiet", "accept", "decide", "release", "start")
RESIZE = ("restart", "prepare", "stop", "wait", "start", "train")


def spreads(runtime: str, names: tuple[str, ...]) -> set[str]:
    return {f"{runtime}_{name}_{which}_s" for name in names for which in ("p50", "p95")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where benches keep their data while they run."""
    monkeypatch.setenv("DORM_HOME", str(tmp_path))
    return tmp_path


def left_running(home: Path) -> list[str]:
    """Command lines of processes that work in `home` or were started from there."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join([*(process.info["cmdline"] or []), process.info["cwd"] or ""])
        if str(home) in words:
            found.append(words)
    return found


@pytest.mark.nats
@pytest.mark.slow
async def test_a_flood_is_refused_and_deposes_no_master(home: Path) -> None:
    made = await bench_flood(submissions=500, masters=2, cores=None, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made))["figures"]
    assert figures["elections_count"]["value"] == 0
    assert figures["masters_cpu_s"]["value"] > 0
    assert left_running(home) == []


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_exec_on_processes(home: Path) -> None:
    made = await bench_exec(runs=3, commands=1, wanted="process", docker_url=None, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made))["figures"]
    names = ("direct", "exec", "python", "command")
    assert figures.keys() == {f"process_{name}_p{percent}_s" for name in names for percent in (50, 99)}
    value = {name: figures[f"process_{name}_p50_s"]["value"] for name in names}
    assert 0 < value["direct"] < value["exec"] < value["command"]
    assert 0 < value["python"] < value["command"]
    assert left_running(home) == []


@pytest.mark.nats
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.soak
async def test_exec_on_docker(home: Path, docker_host: str) -> None:
    made = await bench_exec(runs=3, commands=0, wanted="docker", docker_url=docker_host, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made))["figures"]
    assert 0 < figures["docker_direct_p50_s"]["value"] < figures["docker_exec_p50_s"]["value"]


@pytest.mark.nats
@pytest.mark.slow
async def test_submit_on_processes(home: Path) -> None:
    made = await bench_submit(apps=2, wanted="process", docker_url=None, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made))["figures"]
    assert figures.keys() == spreads("process", SUBMIT) | {"quiet_s"}
    assert figures["process_submit_to_started_beyond_quiet_p50_s"]["goal"] == "<= 0.3"
    assert figures["process_submit_to_started_p50_s"]["goal"] == "<= 0.5"
    beyond = figures["process_submit_to_started_beyond_quiet_p50_s"]["value"] + figures["quiet_s"]["value"]
    assert figures["process_submit_to_started_p50_s"]["value"] == pytest.approx(beyond, rel=1e-3)
    assert figures["process_decide_p50_s"]["value"] >= 0.9 * figures["quiet_s"]["value"]
    assert list(home.iterdir()) == []
    assert left_running(home) == []


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_resize_on_processes(home: Path) -> None:
    made = await bench_resize(runs=2, wanted="auto", docker_url=NOWHERE, progress=lambda _: None)
    document = checked(msgspec.json.encode(made))
    figures = document["figures"]
    assert document["settings"]["runtimes"] == ["process"]
    assert figures.keys() == spreads("process", RESIZE) | {"process_lost_steps"}
    assert figures["process_restart_p50_s"]["goal"] == "<= 1.5"
    assert all(one["value"] > 0 for name, one in figures.items() if name != "process_lost_steps")
    assert list(home.iterdir()) == []
    assert left_running(home) == []


@pytest.mark.docker
@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_submit_and_resize_on_docker(home: Path, docker_host: str, docker_image: str) -> None:
    clusters: set[str] = set()

    def tell(_: str) -> None:
        clusters.update(folder.name for folder in home.iterdir())

    submitted = await bench_submit(apps=1, wanted="docker", docker_url=docker_host, progress=tell)
    figures = checked(msgspec.json.encode(submitted))["figures"]
    assert figures.keys() == spreads("docker", SUBMIT) | {"quiet_s"}
    assert figures["docker_submit_to_started_beyond_quiet_p50_s"]["goal"] == "<= 0.6"
    resized = await bench_resize(runs=1, wanted="docker", docker_url=docker_host, progress=tell)
    figures = checked(msgspec.json.encode(resized))["figures"]
    assert figures.keys() == spreads("docker", RESIZE) | {"docker_lost_steps"}
    assert figures["docker_restart_p50_s"]["goal"] == "<= 1.5"
    assert list(home.iterdir()) == []
    assert len(clusters) == 2
    engine = Engine(docker_host)
    await engine.open()
    try:
        left = [container for name in clusters for container in await engine.list((f"{LABEL_CLUSTER}={name}",))]
    finally:
        await engine.close()
    assert left == []


@pytest.mark.nats
@pytest.mark.slow
async def test_nothing_is_left_of_a_bench_that_is_cancelled(home: Path) -> None:
    trains = asyncio.Event()

    def tell(text: str) -> None:
        if "resize 1 of" in text:
            trains.set()

    bench = asyncio.create_task(bench_resize(runs=100, wanted="process", docker_url=None, progress=tell))
    waiting = asyncio.create_task(trains.wait())
    await asyncio.wait([bench, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert left_running(home)
    bench.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench
    assert list(home.iterdir()) == []
    assert left_running(home) == []


@pytest.mark.nats
@pytest.mark.slow
async def test_a_failed_app_is_not_a_measurement(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(submit_bench._SPEC, "command", ["no-such-command"])
    with raises(BenchError, "app.failed", "no-such-command"):
        await bench_submit(apps=1, wanted="process", docker_url=None, progress=lambda _: None)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("wanted", ["docker", "both"])
async def test_docker_that_was_asked_for_and_does_not_answer_is_an_error(wanted: str) -> None:
    with raises(EngineError, "docker.unavailable"):
        await runtimes(wanted, NOWHERE, lambda _: None)  # type: ignore[arg-type]  # one of its literals


async def test_without_an_engine_auto_measures_processes_with_a_note() -> None:
    said: list[str] = []
    assert await runtimes("auto", NOWHERE, said.append) == ["process"]
    assert said == ["no Docker engine answers: no figures of Docker"]
