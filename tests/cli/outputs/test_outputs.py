"""What an app leaves behind, on a real cluster: kept through a resize, listed, copied out and in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dorm.cli.errors import WrongUsage
from dorm.cli.outputs import Named, named
from dorm.client.checkpoints import CheckpointReport, rows
from dorm.client.errors import Refused
from dorm.local.cluster import LocalCluster
from events.copying import FileEntry
from events.quantities import SECOND
from tests.e2e.commands import done, dorm, refused
from tests.e2e.story import until
from tests.e2e.test_one_machine import options
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from events.runtimes import WantedRuntime as RuntimeName

WORK = """\
import json, os, pathlib, signal, sys, time
out, saved = pathlib.Path(os.environ["DORM_OUTPUTS"]), pathlib.Path(os.environ["DORM_CHECKPOINT_DIR"])
generation, rank = os.environ["DORM_GENERATION"], os.environ["DORM_RANK"]
(out / f"generation-{generation}-{rank}").write_text("was here")
pathlib.Path(os.environ["HOME"], "own").write_text(rank)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
step = 10 * int(generation)
if rank == "0":
    ranks = range(int(os.environ["DORM_WORLD_SIZE"]))
    while not all((out / f"generation-{generation}-{one}").exists() for one in ranks):
        time.sleep(0.01)
    (saved / f"step-{step}.pt").write_bytes(b"x" * 1000)
    with open(os.environ["DORM_PROGRESS"], "a") as file:
        print(json.dumps({"checkpoint": step}), file=file)
while True:
    time.sleep(0.05)
"""


def spec(image: str) -> dict[str, Any]:
    return {
        "name": "leaves", "image": image, "command": ["python3", "-c", WORK], "n_max": 2,
        "demand": {"cpu": "250m", "memory": "64MiB"},
    }  # fmt: skip


@pytest.mark.nats
@pytest.mark.slow
async def test_in_processes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process", agents=1)) as cluster:
        try:
            await leaves(cluster, tmp_path, "")
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
            await leaves(cluster, tmp_path, docker_image)
    finally:
        await cluster.remove_containers()


async def leaves(cluster: LocalCluster, tmp_path: Path, image: str) -> None:
    client = cluster.client
    app = await client.submit(spec(image))
    await until(client, lambda state: state.apps[app.id].checkpoint == 10, "it saves")
    await client.update(app.id, n_max=1)
    await until(client, lambda state: state.apps[app.id].checkpoint == 20, "it saves again")
    home, where = tmp_path / "home", ("--url", cluster.server.url, "--cluster", client.cluster)

    document = json.loads(await done(home, "checkpoints", "leaves", "-o", "json", *where))
    assert (document["restart_step"], document["restart_generation"], document["reports"]) == (20, 2, 2)
    shown = [(one["path"], one["step"], one["step_by"], one["generation"], one["used"], one["size"])
             for one in document["checkpoints"]]  # fmt: skip
    assert shown == [("step-10.pt", 10, "name", 1, False, 1000), ("step-20.pt", 20, "name", 2, True, 1000)]
    table = await done(home, "checkpoints", "leaves", *where)
    assert "resumes here" in table
    assert "a restart would resume from step 20, which generation 2 reported" in table

    assert "copied 3 files" in await done(home, "cp", "leaves:", str(tmp_path / "got"), *where)
    names = ["generation-1-0", "generation-1-1", "generation-2-0"]
    assert sorted(path.name for path in (tmp_path / "got").iterdir()) == names, "outputs survive generations"
    again = await done(home, "cp", "leaves:outputs", str(tmp_path / "got") + "/.", *where)
    assert "copied 3 files" in again
    await done(home, "cp", "leaves/0:work/own", str(tmp_path / "own"), *where)
    assert (tmp_path / "own").read_text() == "0"
    await done(home, "cp", str(tmp_path / "got"), "leaves:checkpoints/extra", *where)
    listed = json.loads(await done(home, "cp", "--list", "leaves:/dorm/checkpoints/extra", "-o", "json", *where))
    assert [(one["path"], one["kind"]) for one in listed if one["kind"] == "file"] == [
        *((name, "file") for name in names), *((f"outputs/{name}", "file") for name in names),
    ]  # fmt: skip
    for words, code in (
        (("leaves:gone", "."), "files.not_found"),
        (("leaves:../../x", "."), "files.path.outside"),
        (("leaves/9:work/own", "."), "rank.not_found"),
    ):
        assert f"[{code}]" in await refused(home, "cp", *words, *where, code=1)
    assert "[usage.conflict]" in await refused(home, "cp", "here", "there", *where, code=2)
    said = await refused(home, "cp", "leaves:step-10.pt", ".", *where, code=1)
    assert "`dorm cp leaves:checkpoints/step-10.pt .` [files.not_found]" in said

    seen = "import os; names = sorted(os.listdir(os.environ['DORM_CHECKPOINT_DIR'])); "
    seen += "print(names, file=open(os.environ['DORM_OUTPUTS'] + '/seen', 'w'))"
    for name, origin, steps, begins in (
        ("exact", "leaves@10", ["extra", "step-10.pt"], 10),
        ("last", app.id, ["extra", "step-10.pt", "step-20.pt"], 20),
    ):
        document = {**spec(image), "name": name, "n_max": 1, "from": origin, "resume": ["python3", "-c", seen]}
        made = await client.submit(document)
        assert (made.checkpoint, made.spec.origin.partition("@")[0]) == (begins, app.id)
        ended = await client.wait(made.id)
        assert ended.ended == "completed", ended.end_reason
        await done(home, "cp", f"{name}:seen", str(tmp_path / name), *where)
        assert (tmp_path / name).read_text() == f"{steps}\n"
    typed = ["--name", "typed", "--from", "leaves@10", "--cpu", "250m", "--no-workdir"]
    listing = "import os; print(sorted(os.listdir(os.environ['DORM_CHECKPOINT_DIR'])))"
    typed += ["--image", image] if image else []
    ended_with, out, err = await dorm(home, "run", *typed, *where, "--", "python3", "-c", listing)
    assert (ended_with, out) == (0, "['extra', 'step-10.pt']\n"), err
    for origin, code in (("nobody", "spec.from.not_found"), ("leaves@30", "spec.from.no_step")):
        with raises(Refused, code):
            await client.submit({**spec(image), "name": "none", "from": origin})


def test_arguments_are_resolved() -> None:
    words = {
        "app:model.pt": Named("app", None, "outputs", "model.pt"),
        "app:": Named("app", None, "outputs", ""),
        "app-abcdef:outputs/outputs/x": Named("app-abcdef", None, "outputs", "outputs/x"),
        "app:checkpoints": Named("app", None, "checkpoints", ""),
        "app/3:work/a b:c": Named("app", 3, "work", "a b:c"),
        "app:/dorm/checkpoints/x": Named("app", None, "checkpoints", "x"),
        "app:/dorm/outputs": Named("app", None, "outputs", ""),
        "./app:x": None,
        "model.pt": None,
        "/tmp/a:b": None,
    }
    assert {word: named(word) for word in words} == words
    with raises(WrongUsage, "usage.conflict"):
        named("app/1:model.pt")
    with raises(WrongUsage, "files.path.outside"):
        named("app:/etc/passwd")


def test_files_are_attributed_to_their_checkpoint() -> None:
    reports = [CheckpointReport(10, 1, 100 * SECOND), CheckpointReport(20, 2, 200 * SECOND)]
    files = [
        FileEntry("", "folder", modified=1),
        FileEntry("step-0010", "folder", modified=50 * SECOND),
        FileEntry("step-0010/a", "file", size=5, modified=60 * SECOND),
        FileEntry("step-0010/b", "file", size=7, modified=55 * SECOND),
        FileEntry("last.pt", "file", size=1, modified=150 * SECOND),
        FileEntry("newer.pt", "file", size=1, modified=205 * SECOND),
        FileEntry("3-of-20.pt", "file", size=1, modified=210 * SECOND),
        FileEntry(".step-30.tmp", "file", size=1, modified=210 * SECOND),
        FileEntry("pipe", "other"),
    ]
    found = [(one.path, one.size, one.files, one.step, one.step_by, one.used) for one in rows(reports, files, 20)]
    assert found == [
        ("step-0010", 12, 2, 10, "name", False),
        ("last.pt", 1, 1, 20, "time", True),
        ("newer.pt", 1, 1, None, "", False),
        ("3-of-20.pt", 1, 1, 20, "name", True),
    ]
    assert not any(one.used for one in rows(reports, files, None))
