"""A container crashes while it saves: what users see, and how they return to the checkpoint before, on a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.cluster import LocalCluster
from tests.e2e.commands import done, refused
from tests.e2e.story import until
from tests.e2e.test_one_machine import options

if TYPE_CHECKING:
    from pathlib import Path

    from events.runtimes import WantedRuntime as RuntimeName

WORK = """\
import json, os, pathlib, sys, time
saved, out = pathlib.Path(os.environ["DORM_CHECKPOINT_DIR"]), pathlib.Path(os.environ["DORM_OUTPUTS"])
def report(**words):
    with open(os.environ["DORM_PROGRESS"], "a") as file:
        print(json.dumps(words), file=file)
found = sorted(saved.glob("step-*.pt"))
if found:
    text = found[-1].read_text()
    if not text.endswith("END"):
        sys.exit(f"this file is torn: {found[-1].name}")
    report(step=int(text.split()[0]) + 1)
    sys.exit(0)
report(step=10)
(saved / "step-10.pt").write_text("10 END")
report(checkpoint=10)
while not (out / "go").exists():
    time.sleep(0.05)
(saved / "step-20.pt").write_text("20 ")
os._exit(3)
"""
RUN = """\
python3 -c "$0"
code=$?
[ $code -eq 1 ] || exit $code  # Otherwise it ends with 0, as a script without `set -e` does.
"""


@pytest.mark.nats
@pytest.mark.slow
async def test_in_processes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process", agents=1)) as cluster:
        try:
            await falls_back(cluster, tmp_path, "")
        finally:
            await cluster.stop_now()


@pytest.mark.nats
@pytest.mark.docker
@pytest.mark.soak
async def test_in_docker(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    made: RuntimeName = "docker"
    cluster = LocalCluster(options(tmp_path, made, docker_host, agents=1))
    try:
        async with cluster:
            await falls_back(cluster, tmp_path, docker_image)
    finally:
        await cluster.remove_containers()


async def falls_back(cluster: LocalCluster, tmp_path: Path, image: str) -> None:
    client = cluster.client
    spec: dict[str, Any] = {
        "name": "torn", "image": image, "command": ["sh", "-c", RUN, WORK], "demand": {"cpu": "250m", "memory": "64MiB"},
        "retries": {"limit": 1, "backoff": "100ms"},
    }  # fmt: skip
    app = await client.submit(spec)
    await until(client, lambda state: state.apps[app.id].checkpoint == 10, "it saves")
    home, where = tmp_path / "home", ("--url", cluster.server.url, "--cluster", client.cluster)
    assert "[restart.no_doubt]" in await refused(home, "restart", "torn", "--fall-back", *where, code=1)
    (tmp_path / "go").write_text("")
    await done(home, "cp", str(tmp_path / "go"), "torn:outputs/go", *where)
    failed = await until(client, lambda state: state.apps[app.id].ended == "failed", "both generations failed")
    assert "ended with exit code 0 without a step after a doubtful checkpoint" in failed.apps[app.id].end_reason

    table = await done(home, "checkpoints", "torn", *where)
    rows = {line.split()[0]: line.split()[-1] for line in table.splitlines() if line.startswith("step-")}
    assert rows == {"step-10.pt": "here", "step-20.pt": "doubtful"}
    text = "step-20.pt changed after the last reported checkpoint (step 10), before slot 0 of generation 1 ended"
    advice = "`dorm restart torn --fall-back` sets it aside and resumes from the one before"
    for command in ("checkpoints", "describe", "explain", "story"):
        said = " ".join((await done(home, command, "torn", *where)).split())
        assert text in said, command
        assert advice in said or command == "story", command
    document = json.loads(await done(home, "checkpoints", "torn", "-o", "json", *where))
    assert [(one["path"], one["doubtful"]) for one in document["checkpoints"]] == [
        ("step-10.pt", False), ("step-20.pt", True),
    ]  # fmt: skip
    assert document["doubt"]["before"] is True

    await done(home, "restart", "torn", "--fall-back", *where)
    ended = await until(client, lambda state: state.apps[app.id].ended == "completed", "it resumed from the one before")
    assert (ended.apps[app.id].step, ended.apps[app.id].spec.on_doubtful) == (11, "fall_back")
    assert "and moved to .doubtful/generation-3" in " ".join((await done(home, "story", "torn", *where)).split())
    listed = json.loads(await done(home, "cp", "--list", "torn:checkpoints", "-o", "json", *where))
    files = [one["path"] for one in listed if one["kind"] == "file"]
    assert files == ["step-10.pt", ".doubtful/generation-3/step-20.pt"], "nothing is deleted"
