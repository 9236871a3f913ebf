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

# What the command line's library says of values differs from version to version; that it names the option does not.
USAGE = [
    (["nosuch"], "No such command 'nosuch' (see `dorm --help`)"),
    (["ps", "--nosuch"], "No such option: --nosuch (see `dorm ps --help`)"),
    (["ps", "-o", "xml"], "'xml' is not one of"),
    (["submit"], "Missing argument 'SPEC'"),
    (["describe"], "Missing argument 'APP'"),
    (["update", "x"], "say what to change: --weight, --n-min or --n-max"),
    (["update", "x", "--weight", "heavy"], "Invalid value for '--weight': "),
    (["logs", "x", "--tail", "-1"], "Invalid value for '--tail': "),
    (["events", "--after", "-5"], "Invalid value for '--after': "),
    (["up", "--agents", "0"], "Invalid value for '--agents': "),
    (["up", "--port", "70000"], "Invalid value for '--port': "),
    (["up", "--capacity", "cpu"], "write name=amount"),
    (["up", "--capacity", "cpu=-1"], "cpu: '-1' is not a quantity"),
    (["up", "--capacity", "cpu=nan"], "cpu: 'nan' is not a quantity"),
    (["up", "--param", "theta1"], "write key=value"),
    (["up", "--param", "theta1=["], "not YAML"),
    (["up", "--policy", "dorm", "--param", "theta9=1"], "unknown parameter theta9 (it has"),
    (["up", "--policy", "dorm", "--param", "theta1=.nan"], "theta1 has to be between"),
    (["up", "--policy", "static", "--param", "count=many"], "count"),
    (["up", "--policy", "lottery"], "unknown policy 'lottery' (known: app-level, dorm, "),
    (["up", "--runtime", "podman"], "'podman' is not one of"),
    (["master", "--policy", "lottery"], "unknown policy 'lottery'"),
    (["agent", "--ports", "20000"], "write first-last"),
    (["agent", "--ports", "1-80"], "use a range within"),
    (["agent", "--ports", "30000-40000"], "use a range within"),
    (["agent", "--name", "no.dots"], "node name 'no.dots'"),
    (["agent", "--label", "gpu"], "write key=value"),
    (["agent", "--label", "gpu type=h100"], "label 'gpu type': no app could ask for it"),
    (["agent", "--label", "in=here"], "label 'in': no app could ask for it"),
    (["completion", "tcsh"], "'tcsh' is not one of"),
    (["policy", "nosuch"], "No such command 'nosuch' (see `dorm policy --help`)"),
    (["policy", "get"], "Missing argument 'KEY'"),
    (["replay", "nosuch"], "No such command 'nosuch' (see `dorm replay --help`)"),
]


@pytest.mark.parametrize(("arguments", "reason"), USAGE, ids=[" ".join(a) for a, _ in USAGE])
async def test_wrong_usage(tmp_path: Path, arguments: list[str], reason: str) -> None:
    said = await refused(tmp_path, *arguments, code=2)
    assert reason in said
    assert "Value error" not in said


@pytest.mark.parametrize("words", [["schema"], ["--version"], ["events", "--help"]], ids=" ".join)
def test_output_that_can_not_be_written(tmp_path: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*DORM, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output can't be written: No space left on device\n"


CLUSTER_FILES = [
    ("agents: 0", "agents: "),
    ("agents: many", "agents: "),
    ("nodes: 3", "nodes: "),
    ("port: -1", "port: "),
    ("policy: lottery", "unknown policy 'lottery'"),
    ("policy: dorm\nparams: {theta9: 1}", "unknown parameter theta9"),
    ("params: 3", "params: "),
    ("quiet_ms: -3", "quiet_ms: "),
    ("node_lease_s: .nan", "node_lease_s"),
    ("capacity: {cpu: lots}", "cpu: 'lots' is not a quantity"),
    ("capacity: {cpu: .inf}", "cpu: "),
    ("capacity: {}", "capacity: "),
    ("runtime: podman", "runtime: expected auto, docker or process, got 'podman'"),
    ("- 1", "a cluster file is a map"),
]


@pytest.mark.parametrize(("text", "reason"), CLUSTER_FILES, ids=[text for text, _ in CLUSTER_FILES])
async def test_a_bad_cluster_file(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    line = await refused(tmp_path, "up", "--port", "0", "--config", str(file), code=2)
    assert line.startswith(str(file)), line
    assert reason in line


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "nats://", "nats://host:port", "two words", "nats://h:99999"])
async def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    assert "is not the address of a NATS server; write nats://HOST:4222" in await refused(
        tmp_path, "ps", "--url", url, code=1
    )


@pytest.mark.parametrize("command", ["ps", "nodes", "events", "masters"])
async def test_nobody_answers(tmp_path: Path, command: str) -> None:
    """Masters and agents wait (`test_first_start`); who asks something is told at once."""
    code, out, err = await dorm(tmp_path, command, "--url", "nats://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: no NATS server answers at nats://127.0.0.1:1 (")
    assert "start a cluster with `dorm up`" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"version": "2.9.25", "jetstream": True}, "is 2.9.25; Dorm needs 2.12 or later"),
        ({"version": "1.4.1"}, "is 1.4.1; Dorm needs 2.12 or later"),
        ({"version": "2.12.1"}, "JetStream is off"),
    ],
    ids=["too old", "ancient", "no JetStream"],
)
async def test_a_server_that_will_not_do(tmp_path: Path, info: dict[str, object], reason: str) -> None:
    async with _greeter(info) as url:
        for command in ("ps", "master"):
            assert reason in await refused(tmp_path, command, "--url", url, code=1)


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
