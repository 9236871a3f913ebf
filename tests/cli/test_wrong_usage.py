"""Wrong usage of each command: one line that says what to do, and the right exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.commands import DORM, dorm, environment, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.slow

USAGE = [
    (["nosuch"], "usage.invalid", "'nosuch'"),
    (["ps", "--nosuch"], "usage.no_such_option", "`dorm ps --help`"),
    (["ps", "-o", "xml"], "usage.bad_parameter", "'xml'"),
    (["submit"], "usage.missing_parameter", "SPEC"),
    (["describe"], "usage.missing_parameter", "APP"),
    (["update", "x"], "usage.nothing_to_do", "--weight, --n-min or --n-max"),
    (["update", "x", "--weight", "heavy"], "usage.bad_parameter", "'--weight'"),
    (["logs", "x", "--tail", "-1"], "usage.bad_parameter", "'--tail'"),
    (["logs", "x", "--all", "--rank", "1"], "usage.conflict", "--rank"),
    (["wait", "x", "--timeout", "soon"], "quantity.malformed", "--timeout"),
    (["scale", "x"], "usage.nothing_to_do", "--n-min or --n-max"),
    (["scale", "x", "2", "--n-max", "3"], "usage.conflict", "N"),
    (["events", "--after", "-5"], "position.malformed", "'--after'"),
    (["up", "--agents", "0"], "usage.bad_parameter", "'--agents'"),
    (["up", "--port", "70000"], "usage.bad_parameter", "'--port'"),
    (["up", "--capacity", "cpu"], "quantity.malformed", "'cpu'"),
    (["up", "--capacity", "cpu=-1"], "quantity.malformed", "'-1'"),
    (["up", "--capacity", "cpu=nan"], "quantity.malformed", "'nan'"),
    (["up", "--param", "theta1"], "usage.not_a_pair", "'theta1'"),
    (["up", "--param", "theta1=["], "file.not_yaml", "parameter"),
    (["up", "--policy", "dorm", "--param", "theta9=1"], "policy.parameter.unknown", "theta9"),
    (["up", "--policy", "dorm", "--param", "theta1=.nan"], "policy.parameter.out_of_range", "theta1"),
    (["up", "--policy", "static", "--param", "count=many"], "policy.parameter.out_of_range", "count"),
    (["up", "--policy", "lottery"], "policy.unknown", "'lottery'"),
    (["up", "--runtime", "podman"], "usage.bad_parameter", "'podman'"),
    (["up", "--trust", "--open"], "usage.conflict", "--open"),
    (["master", "--policy", "lottery"], "policy.unknown", "'lottery'"),
    (["agent", "--ports", "20000"], "usage.ports.malformed", "'20000'"),
    (["agent", "--ports", "1-80"], "config.ports.out_of_range", "1-80"),
    (["agent", "--ports", "30000-40000"], "config.ports.out_of_range", "30000-40000"),
    (["agent", "--name", "no.dots"], "config.name.malformed", "'no.dots'"),
    (["agent", "--gpu", "GPU-1", "--gpu", "GPU-1"], "config.gpus.twice", "GPU-1"),
    (["agent", "--label", "gpu"], "usage.not_a_pair", "'gpu'"),
    (["agent", "--label", "gpu type=h100"], "config.labels.malformed", "'gpu type'"),
    (["agent", "--allow", "alice:privileged"], "config.allow.unknown", "'alice:privileged'"),
    (["agent", "--label", "in=here"], "config.labels.malformed", "'in'"),
    (["agent", "--data", "/tmp/\udcff"], "config.path.not_utf8", r"/tmp/\udcff"),
    (["agent", "--checkpoints", "/tmp/\udcff"], "config.path.not_utf8", r"/tmp/\udcff"),
    (["up", "--data", "/tmp/\udcff"], "config.path.not_utf8", r"/tmp/\udcff"),
    (["completion", "tcsh"], "usage.bad_parameter", "'tcsh'"),
    (["policy", "nosuch"], "usage.invalid", "`dorm policy --help`"),
    (["policy", "get"], "usage.missing_parameter", "KEY"),
    (["replay", "nosuch"], "usage.invalid", "'nosuch'"),
]


@pytest.mark.parametrize(("arguments", "error", "named"), USAGE, ids=[" ".join(a) for a, _, _ in USAGE])
async def test_wrong_usage(tmp_path: Path, arguments: list[str], error: str, named: str) -> None:
    said = await refused(tmp_path, *arguments, code=2)
    assert said.endswith(f" [{error}]"), said
    assert named in said
    assert "Value error" not in said


@pytest.mark.parametrize("words", [["schema"], ["--version"], ["events", "--help"]], ids=" ".join)
def test_output_that_can_not_be_written(tmp_path: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*DORM, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output can't be written: No space left on device [system.enospc]\n"


CLUSTER_FILES = [
    ("agents: 0", "cluster_file.agents.out_of_range"),
    ("agents: many", "cluster_file.agents.wrong_type"),
    ("nodes: 3", "cluster_file.unknown_field"),
    ("port: -1", "cluster_file.port.out_of_range"),
    ("policy: lottery", "policy.unknown"),
    ("policy: dorm\nparams: {theta9: 1}", "policy.parameter.unknown"),
    ("params: 3", "cluster_file.params.wrong_type"),
    ("quiet_ms: -3", "settings.quiet_ms.out_of_range"),
    ("node_lease_s: .nan", "settings.node_lease_s.wrong_type"),
    ("capacity: {cpu: lots}", "quantity.malformed"),
    ("capacity: {cpu: .inf}", "quantity.too_large"),
    ("capacity: {}", "cluster_file.capacity.out_of_range"),
    ("runtime: podman", "cluster_file.runtime.not_a_choice"),
    ("- 1", "cluster_file.not_a_map"),
]


@pytest.mark.parametrize(("text", "error"), CLUSTER_FILES, ids=[text for text, _ in CLUSTER_FILES])
async def test_a_bad_cluster_file(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    line = await refused(tmp_path, "up", "--port", "0", "--config", str(file), code=2)
    assert line.startswith(str(file)), line
    assert line.endswith(f" [{error}]"), line


async def test_all_that_is_wrong_with_a_cluster_file_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("agents: 0\ncapcity: {cpu: 2}\nruntime: podman\nport: 99999\n")
    code, out, err = await dorm(tmp_path, "up", "--config", str(file))
    assert (code, out) == (2, "")
    kinds = ["agents.out_of_range", "unknown_field", "runtime.not_a_choice", "port.out_of_range"]
    for line, said, kind in zip((1, 2, 3, 4), err.splitlines(), kinds, strict=True):
        assert said.startswith(f"error: {file}: line {line}: ")
        assert said.endswith(f" [cluster_file.{kind}]")


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "nats://", "nats://host:port", "two words", "nats://h:99999"])
async def test_a_malformed_address_is_refused(tmp_path: Path, url: str) -> None:
    said = await refused(tmp_path, "ps", "--url", url, code=1)
    assert said.endswith(" [server.address.malformed]"), said


@pytest.mark.parametrize("command", ["ps", "nodes", "events", "masters"])
async def test_no_one_answers(tmp_path: Path, command: str) -> None:
    """Masters and agents wait (`test_first_start`); other commands fail at once."""
    code, out, err = await dorm(tmp_path, command, "--url", "nats://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "nats://127.0.0.1:1" in err
    assert err.endswith(" [log.no_server]\n")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("info", "error", "named"),
    [
        pytest.param({"version": "2.9.25", "jetstream": True}, "log.server_too_old", "2.9.25", id="too old"),
        pytest.param({"version": "1.4.1"}, "log.server_too_old", "1.4.1", id="ancient"),
        pytest.param({"version": "2.12.1"}, "log.no_jetstream", "-js", marks=pytest.mark.soak, id="no JetStream"),
    ],
)
async def test_unsuitable_servers_are_refused(tmp_path: Path, info: dict[str, object], error: str, named: str) -> None:
    async with _greeter(info) as url:
        for command in ("ps", "master"):
            said = await refused(tmp_path, command, "--url", url, code=1)
            assert said.endswith(f" [{error}]"), said
            assert named in said


@contextlib.asynccontextmanager
async def _greeter(info: dict[str, object]) -> AsyncIterator[str]:
    """What a server of another kind says first, and to pings; it answers nothing else."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = {"server_id": "X", "proto": 1, "headers": True, "max_payload": 1 << 20, **info}
        writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
