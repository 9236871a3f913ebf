"""`dorm check` on a cluster of processes that knows its users, and without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml
from typer.main import get_command

from dorm.cli.check import complete_file
from dorm.cli.main import app
from tests.e2e import forked
from tests.e2e.commands import done, environment
from tests.e2e.local_up import Up, leaving_nothing, up
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
NO_CLUSTER = ("--url", "nats://127.0.0.1:1")
SAVES = """\
import os
print(os.environ["DORM_CHECKPOINT_DIR"], os.environ["DORM_PROGRESS"])
"""
FROM_THE_SHELL = """\
import argparse
import not_there_at_all
import settings

open("ran", "w")
parser = argparse.ArgumentParser()
parser.add_argument("--data", default="../data/x.csv")
parser.add_argument("--epochs", type=int, default=3)
parser.parse_args()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with (
        leaving_nothing(tmp_path_factory.mktemp("check")) as folder,
        up(folder, "--trust-apps", known=True) as running_cluster,
    ):
        yield running_cluster


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A training as people have it: with a wrapper, data beside it, and a module that git does not track."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").touch()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(FROM_THE_SHELL)
    (folder / "saves.py").write_text(SAVES)
    (folder / "settings.py").touch()
    (folder / ".gitignore").write_text("settings.py\n")
    (folder / "run.sh").write_text("#!/bin/bash\nset -e\npython3 train.py --epochs 5\n")
    return folder


async def check(folder: Path, home: Path, *words: str, **more: str) -> tuple[int, str, str]:
    # Without the tests' own PYTHONPATH and PYTHONHASHSEED, of which it would say that the app does not get them.
    env = {name: value for name, value in environment(home, **more).items() if not name.startswith("PYTHON")}
    code, out, err = await forked.command(("check", *words), env, b"", 60.0, folder)
    return code, out.decode(), err.decode()


async def found(folder: Path, home: Path, *words: str, **more: str) -> tuple[int, dict[str, Any]]:
    code, out, err = await check(folder, home, "-o", "json", *words, **more)
    assert err == ""
    return code, json.loads(out)


def levels(document: dict[str, Any]) -> dict[str, str]:
    return {one["code"]: one["level"] for one in document["findings"] if one["level"] != "ok"}


async def seq_of(cluster: Up) -> int:
    async with cluster.client() as client:
        return (await client.state()).seq


async def test_everything_that_is_wrong_is_said_at_once_and_nothing_is_done(cluster: Up, project: Path) -> None:
    before, stored = await seq_of(cluster), await done(cluster.home, "files", "list")
    files = sorted(project.rglob("*"))
    code, document = await found(project, cluster.home, "--volume", "datasets:/data", "--", "bash", "run.sh")
    assert code == 1
    assert levels(document) == {
        "check.python.module_not_found": "wrong",
        "check.paths.outside": "wrong",
        "check.paths.left_out": "wrong",
        "check.folder.left_out": "note",
        "check.paths.not_kept": "note",
        "check.checkpoints.none": "note",
        "spec.volumes.not_offered": "wrong",
    }
    assert (document["app"], document["cluster"], document["wrong"], document["note"]) == ("run", "local", 4, 3)
    texts = {one["code"]: one["text"] for one in document["findings"]}
    assert "not_there_at_all (train.py, line 2)" in texts["check.python.module_not_found"]
    assert texts["check.paths.outside"].startswith("train.py, line 7: ../data/x.csv ")
    assert texts["check.paths.left_out"] == "train.py, line 3: it imports settings.py, which is not shipped"
    assert sorted(project.rglob("*")) == files
    assert await seq_of(cluster) == before
    assert await done(cluster.home, "files", "list") == stored


async def test_what_is_right_is_said_in_lines_for_people(cluster: Up, project: Path) -> None:
    (project / ".gitignore").unlink()
    code, out, err = await check(project, cluster.home, "--cpu", "500m", "--n-max", "1", "--", "python3", "saves.py")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[:6]] == [
        ["ok", "spec"], ["ok", "folder"], ["ok", "program"], ["ok", "python"], ["ok", "checkpoints"], ["ok", "place"],
    ]  # fmt: skip
    assert "it would get 1 container now: 1 on node-" in lines[5]
    assert lines[-1] == "saves: nothing is wrong: 0 things wrong, 0 notes, 0 unknown"


async def test_a_file_is_checked_as_it_would_be_submitted(cluster: Up, project: Path) -> None:
    spec: dict[str, Any] = {"name": "mine", "command": ["python3", "saves.py"], "demand": {"cpu": "500m"}}
    file = project / "app.yaml"
    file.write_text(yaml.safe_dump(spec))
    code, document = await found(project, cluster.home, "app.yaml")
    assert (code, levels(document)) == (1, {"check.folder.not_shipped": "wrong"})
    file.write_text(yaml.safe_dump({**spec, "workdir": "."}))
    assert levels((await found(project, cluster.home, "app.yaml"))[1]) == {"check.folder.left_out": "note"}
    code, out, err = await check(project, cluster.home, "app.yaml", "-o", "json")
    assert (code, err, json.loads(out)["wrong"]) == (0, "", 0)
    file.write_text(yaml.safe_dump({**spec, "workdir": ".", "command": ["bash", "gone.sh"], "n_min": 3}))
    code, document = await found(project, cluster.home, "app.yaml")
    assert code == 1
    assert levels(document)["check.program.script_not_found"] == "wrong"
    # A fault of the spec hides nothing of what does not depend on it.
    file.write_text(yaml.safe_dump({**spec, "workdir": ".", "command": ["bash", "run.sh"], "n_min": 3, "n_max": 2}))
    code, document = await found(project, cluster.home, "app.yaml")
    assert code == 1
    assert {"check.paths.outside", "check.cluster.not_asked"} < set(levels(document))
    assert any(code.startswith("spec.n_") for code in levels(document)), levels(document)
    file.write_text("name: [")
    assert levels((await found(project, cluster.home, "app.yaml"))[1])["file.not_yaml"] == "wrong"
    for words, error in (
        (("none.yaml",), "[system.enoent]"),
        (("--n-max", "2", "app.yaml"), "[usage.conflict]"),
        (("--folder", "here", "--", "true"), "[usage.bad_parameter]"),
        ((), "[usage.missing_parameter]"),
    ):
        code, out, err = await check(project, cluster.home, *words)
        assert (code, out) == (2, ""), err
        assert err.strip().endswith(error), err


async def test_what_the_cluster_would_refuse(cluster: Up, project: Path) -> None:
    for options, error in (
        (("--gpu", "1"), "spec.demand.too_large"),
        (("--n-min", "9"), "spec.n_min.no_room"),
        (("--set", "require=has h100"), "spec.require.no_node"),
        (("--after", "nobody"), "spec.after.unknown"),
        (("--from", "nobody"), "spec.from.not_found"),
        (("--set", "weigt=2"), "spec.unknown_field"),
        (("--requirements", "none.txt"), "system.enoent"),
        (("--env", "API_KEY=abcdefgh12345678"), "spec.env.secret"),
    ):
        code, document = await found(project, cluster.home, *options, "--", "python3", "saves.py")
        assert (code, levels(document).get(error)) == (1, "wrong"), document
    code, document = await found(project, cluster.home, "--", "no-such-program")
    assert (code, levels(document)["run.program.not_found"]) == (1, "wrong")
    code, document = await found(project, cluster.home, "--", "python3", "save.py")
    assert (code, levels(document)["run.script.not_found"]) == (1, "wrong")


async def test_a_plain_user_learns_why_it_would_wait_and_until_when(cluster: Up, project: Path) -> None:
    home, mine = cluster.home, {"DORM_CREDENTIALS": str(project.parent / "ann.json")}
    await done(home, "user", "add", "ann", "--role", "user", "--to", mine["DORM_CREDENTIALS"])
    code, document = await found(project, home, "--", "python3", "saves.py", **mine)
    assert (code, document["findings"][-1]["check"]) == (0, "place")
    filler = {"name": "filler", "command": ["sleep", "600"], "demand": {"cpu": 1}, "n_min": 2, "n_max": 2, "grace": 1}
    (project / "filler.yaml").write_text(yaml.safe_dump(filler))
    await done(home, "submit", str(project / "filler.yaml"), env=mine)
    async with cluster.client() as client:
        await until(
            client, lambda s: any(a.name == "filler" and a.phase == "running" for a in s.apps.values()), "it runs"
        )
    code, document = await found(project, home, "--", "python3", "saves.py", **mine)
    (waits,) = (one for one in document["findings"] if one["code"] == "check.place.waits")
    assert (code, waits["level"]) == (0, "note")
    assert waits["text"].startswith("it would wait now: ")
    assert "start" in waits["text"]
    code, document = await found(project, home, "filler.yaml", **mine)
    assert (code, levels(document)["spec.name.taken"]) == (1, "wrong")
    await done(home, "cancel", "filler", "--wait", env=mine)


async def test_a_sweep_shows_its_first_and_its_last_command(cluster: Up, project: Path) -> None:
    sweep = {
        "name": "lr", "command": ["python3", "saves.py", "--lr", "{lr}"], "workdir": ".", "demand": {"cpu": "500m"},
        "sweep": {"lr": [0.5, 0.25], "seed": {"range": 3}},
    }  # fmt: skip
    (project / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    code, document = await found(project, cluster.home, "sweep.yaml")
    assert code == 0
    assert [one["text"] for one in document["findings"] if one["check"] == "spec"] == [
        "6 apps, each 1 container of 0.5 cores, engine plain",
        'lr-0000: ["python3","saves.py","--lr","0.5"]',
        'lr-0005: ["python3","saves.py","--lr","0.25"]',
    ]


async def test_without_a_cluster_the_rest_is_checked(tmp_path: Path, project: Path) -> None:
    code, document = await found(project, tmp_path, *NO_CLUSTER, "--", "bash", "run.sh")
    assert (code, document["cluster"]) == (1, "")
    assert levels(document)["log.no_server"] == "unknown"
    assert levels(document)["check.paths.outside"] == "wrong"
    code, document = await found(project, tmp_path, *NO_CLUSTER, "--", "python3", "saves.py")
    assert (code, document["unknown"]) == (0, 1)
    code, out, err = await check(project, tmp_path, *NO_CLUSTER, "--", "python3", "saves.py")
    assert (code, err) == (0, "")
    assert "unknown cluster" in out


async def test_its_options_are_those_of_run() -> None:
    commands: Any = get_command(app)
    run, mine = ({one.name for one in commands.get_command(None, name).params} for name in ("run", "check"))
    assert run - mine == {"command", "detach", "dry_run", "show_ignored"}


async def test_tab_completes_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    for name in ("app.yaml", "specs/one.toml", "specs/two.py"):
        (tmp_path / name).touch()
    assert complete_file("") == ["app.yaml", "specs/"]
    assert complete_file("specs/") == ["specs/one.toml"]
    assert complete_file("none/") == []
