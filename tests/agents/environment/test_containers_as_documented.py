"""docs/containers.md describes a container: one is started on each runtime and compared with each line."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agents.runtime.process.records import OF_NETWORK
from tests.agents.harness import Harness, ended, output
from tests.agents.runtime.paths.conformance import LONGEST

if TYPE_CHECKING:
    from agents.runtime.interface import Runtime

PAGE = Path(__file__).parents[3] / "docs" / "containers.md"
PROBE = Path(__file__).with_name("containers_probe.py").read_text()
MEMORY = 256 * 2**20
RESOURCES = {"cpu": 500, "memory": MEMORY}


def documented(column: int) -> dict[str, str]:
    """Each fact of the table, without what explains it."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[0].strip().strip("`"): row[column].split(":")[0].strip() for row in rows[1:]}


async def found_in(harness: Harness, runtime: Runtime, **more: Any) -> dict[str, Any]:
    spec = harness.spec("python3", "-c", PROBE, resources=RESOURCES, **more)
    await runtime.ensure(spec)
    seen = await ended(runtime, spec.key)
    said = await output(runtime, spec.key)
    assert seen.exit_code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.docker
async def test_in_docker(docker_harness: Harness) -> None:
    async with docker_harness.opened() as runtime:
        f = await found_in(docker_harness, runtime, tenant="vision")
    half = max(64 * 2**20, MEMORY // 2)
    facts = {
        "user": not f["named"] and f["uid"] not in (0, os.getuid()) and f["user"] == "dorm",
        "working directory": f["cwd"] == "/",
        "HOME": f["home"] == f["beside_progress"] == "/dorm/run" and f["home_writable"],
        "files of the image or node": not f["etc_writable"],
        "/tmp": f["tmp_size"] == half,
        "TMPDIR": f["tmpdir"] == "" and f["temporary"] == "/tmp",
        "/dev/shm": f["shm_size"] == half,
        "python3": not f["python"].startswith(str(Path(sys.executable).parent)),
        "network": f["network"] == os.readlink("/proc/self/ns/net"),
        "other processes": f["pids"] != os.readlink("/proc/self/ns/pid"),
        "first process": f["first"] in ("docker-init", "tini"),
        "capabilities": f["capabilities"] == 0,
        "more privileges": f["no_new_privs"] == "1",
        "system calls": f["seccomp"] == "2",
        "CPU": f["cpu"] in ("50000", "50000 100000"),
        "memory": f["memory"] == str(MEMORY),
        "GPUs": f["nvidia"] == "void",
        "processes": f["processes"] == "4096",
        "open files": f["open_files"] == [16384, 16384],
        "umask` and `nice": f["umask"] == 0o022 and f["nice"] in (0, os.nice(0)),
        "oom_score_adj": f["oom_score_adj"] == "500",
        "core dumps": f["core"] == [0, 0],
    }
    said = documented(1)
    assert set(said["variables"].split(", ")) <= set(f["variables"]), "beside those of the image"
    assert [name for name, holds in facts.items() if not holds] == [], f
    assert {**dict.fromkeys(facts, ""), "variables": ""}.keys() == said.keys()
    assert {name: said[name] for name in _DOCKER} == _DOCKER


async def test_as_a_plain_process(process_harness: Harness) -> None:
    async with process_harness.opened() as runtime:
        f = await found_in(process_harness, runtime)
    said, most = documented(2), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    facts = {
        "user": f["uid"] == os.getuid(),
        "working directory": f["cwd"] == f["home_resolved"] and f["above"] == [["run"], ["up"]],
        "HOME": f["home_resolved"] == f["beside_progress"] and len(f["home"]) <= LONGEST and f["home_writable"],
        "files of the image or node": f["etc_writable"] == os.access("/etc", os.W_OK),
        "/tmp": f["tmp"] == os.stat("/tmp").st_dev,
        "TMPDIR": f["tmpdir"] == f["temporary"] != "/tmp" and len(f["tmpdir"]) <= LONGEST,
        "/dev/shm": f["shm"] == os.stat("/dev/shm").st_dev,
        "variables": [name for name in f["variables"] if name not in _OF_NETWORK] == said["variables"].split(", "),
        "python3": Path(f["python"]).parent == Path(sys.executable).parent,
        "network": f["network"] == os.readlink("/proc/self/ns/net"),
        "other processes": f["pids"] == os.readlink("/proc/self/ns/pid"),
        "first process": f["leads_session"],
        "capabilities": f["capabilities"] == _own_capabilities(),
        "more privileges": f["no_new_privs"] == "0",
        "system calls": f["seccomp"] == "0",
        "CPU": True,
        "memory": True,
        "GPUs": f["cuda"] == "",
        "processes": True,
        "open files": f["open_files"] in ([65536, 524288], [min(65536, most), most]),
        "umask` and `nice": f["umask"] == 0o022 and f["nice"] in (0, os.nice(0)),
        "oom_score_adj": f["oom_score_adj"] == "500",
        "core dumps": f["core"] == list(resource.getrlimit(resource.RLIMIT_CORE)),
    }
    assert not runtime.limits, "CPU, memory and processes have no limit"
    assert [name for name, holds in facts.items() if not holds] == [], f
    assert facts.keys() == said.keys()
    assert {name: said[name] for name in _PROCESS} == _PROCESS


_OF_NETWORK = (*OF_NETWORK, *(name.lower() for name in OF_NETWORK))
_DOCKER = {
    "user": "a user of its tenant, without a name", "HOME": "`/dorm/run`", "files of the image or node": "read-only",
    "network": "the node's", "other processes": "not seen", "capabilities": "none", "more privileges": "never",
    "system calls": "filtered", "processes": "4,096", "open files": "16,384", "core dumps": "none",
    "/dev/shm": "half of the container's memory, at least 64 MiB", "/tmp": "in memory", "TMPDIR": "not set",
}  # fmt: skip
"""What the facts above are in words."""
_PROCESS = {
    "user": "the agent's", "working directory": "HOME", "HOME": "a short path to the folder of `DORM_PROGRESS`",
    "TMPDIR": "a short path to a private folder", "network": "the node's",
    "other processes": "seen, and those of the same user can be signalled", "capabilities": "the agent's",
    "CPU": "not limited", "memory": "not limited", "processes": "not limited", "open files": "65,536, of at most 524,288",
    "core dumps": "as for the agent", "/tmp": "the node's", "/dev/shm": "the node's",
}  # fmt: skip


def _own_capabilities() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
