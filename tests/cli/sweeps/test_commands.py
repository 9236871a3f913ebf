"""`dorm sweep`, and sweeps in other commands, on a cluster of processes that knows its users."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import Up, leaving_nothing, up
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.cli.conftest import Dorm

TRAIN = """\
import json, os, sys
lr, seed = float(sys.argv[1]), int(sys.argv[2])
assert os.environ["DORM_PARAM_LR"] == sys.argv[1] and os.environ["DORM_ARRAY_COUNT"] == "4", os.environ
with open(os.environ["DORM_PROGRESS"], "a") as file:
    file.write(json.dumps({"step": 10, "loss": lr + seed / 100}) + "\\n")
print("index", os.environ["DORM_ARRAY_INDEX"], "of", os.environ["DORM_SWEEP"])
"""
SMALL = ["--cpu", "250m", "--memory", "64MiB"]


def sweep_file(folder: Path, **fields: object) -> str:
    path = folder / "sweep.yaml"
    spec = {"name": "naps", "command": ["sleep", "300"], "demand": {"cpu": "250m"}, "grace": 1, **fields}
    path.write_text(yaml.safe_dump(spec))
    return str(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with (
        leaving_nothing(tmp_path_factory.mktemp("sweeps")) as folder,
        up(folder, "--trust-apps", known=True) as running_cluster,
    ):
        yield running_cluster


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_sweep_of_a_plain_user_is_run_waited_for_and_compared(cluster: Up, tmp_path: Path) -> None:
    # Without PYTHONPATH, which the app would not get, as a note would say.
    home, mine = cluster.home, {"DORM_CREDENTIALS": str(tmp_path / "ann.json"), "PYTHONPATH": ""}
    await done(home, "user", "add", "ann", "--role", "user", "--to", mine["DORM_CREDENTIALS"])
    command = [
        "sweep",
        "run",
        "--name",
        "lr",
        "-p",
        "lr=0.5,0.25",
        "-p",
        "seed=0..1",
        "-k",
        "3",
        *SMALL,
        "--no-workdir",
        "--",
    ]
    command += ["python3", "-c", TRAIN, "{lr}", "{seed}"]
    assert await done(home, *command, env=mine) == "lr: 4 apps submitted; `dorm sweep show lr` shows them\n"
    assert await done(home, "wait", "lr", env=mine) == "lr: 4 completed\n"
    found = json.loads(await done(home, "sweep", "show", "lr", "--by", "loss", "-o", "json", env=mine))
    assert (found["count"], found["parallel"], found["phases"]) == (4, 3, {"completed": 4})
    assert [(app["parameters"], app["loss"]) for app in found["apps"]] == [
        ({"lr": 0.25, "seed": 0}, 0.25), ({"lr": 0.25, "seed": 1}, 0.26),
        ({"lr": 0.5, "seed": 0}, 0.5), ({"lr": 0.5, "seed": 1}, 0.51),
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(await done(home, "sweep", "show", "lr", "-o", "csv", env=mine))))
    assert [(row["name"], row["lr"], row["seed"], row["phase"]) for row in rows][1] == (
        "lr-0001",
        "0.5",
        "1",
        "completed",
    )
    assert "index 2 of lr" in await done(home, "logs", "lr-0002", env=mine)
    assert "[sweep.over]" in await refused(home, *command, code=1, env=mine)
    past = json.loads(await done(home, "history", "-m", "lr<0.4", "--sort", "-loss", "-o", "json", env=mine))
    assert [(row["name"], row["sweep"], row["user"], row["loss"]) for row in past] == [
        ("lr-0003", "lr", "ann", 0.26), ("lr-0002", "lr", "ann", 0.25),
    ]  # fmt: skip
    listed = json.loads(await done(home, "sweep", "list", "--all", "-o", "json", env=mine))
    assert [(row["name"], row["user"], row["submitted"]) for row in listed] == [("lr", "ann", 4)]


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_sweep_is_one_line_and_ends_as_one(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    file = sweep_file(tmp_path, array=9, parallel=2)
    assert json.loads(await done(home, "sweep", "run", file, "-o", "json")) == {
        "name": "naps", "count": 9, "new": 9, "before": 0,
    }  # fmt: skip
    async with cluster.client() as client:
        await until(client, lambda s: sum(app.phase == "running" for app in s.apps.values()) == 2, "two run")
    lines = (await done(home, "ps")).splitlines()
    assert len([line for line in lines if line.startswith("naps")]) == 1
    assert "sweep of 9: 2 running, 7 waiting" in lines[-1]
    assert len((await done(home, "ps", "naps")).splitlines()) == 10
    named = json.loads(await done(home, "ps", "naps-0003", "naps-0001", "naps-0003", "-o", "json"))
    assert [row["name"] for row in named] == ["naps-0003", "naps-0001"]
    assert len((await done(home, "ps", "naps-0003", "naps")).splitlines()) == 10
    assert "[app.not_found]" in await refused(home, "ps", "naps-0003", "nops", code=1)
    assert len([row for row in json.loads(await done(home, "ps", "-o", "json")) if row["sweep"] == "naps"]) == 9
    assert "at most 2 of its group run at once" in await done(home, "explain", "naps-0007")
    said = await done(home, "sweep", "edit", "naps", "--parallel", "3")
    assert said == "naps: at most 3 at once from now on (before: at most 2)\n"
    async with cluster.client() as client:
        await until(client, lambda s: sum(app.phase == "running" for app in s.apps.values()) == 3, "a third one runs")
    assert "[edit.no_change]" in await refused(home, "sweep", "edit", "naps", "-k", "3", code=1)
    assert "naps is a sweep" in await refused(home, "describe", "naps", code=1)
    other = {"DORM_CREDENTIALS": str(tmp_path / "eve.json")}
    await done(home, "user", "add", "eve", "--role", "user", "--to", other["DORM_CREDENTIALS"])
    assert "[sweep.not_found]" in await refused(home, "sweep", "cancel", "naps", code=1, env=other)
    assert "[sweep.not_found]" in await refused(home, "sweep", "edit", "naps", "-k", "9", code=1, env=other)
    assert await done(home, "sweep", "cancel", "naps", "--reason", "enough", "--wait") == "naps: 9 apps ended\n"
    project = tmp_path / "project"
    project.mkdir()
    (project / "words.txt").write_text("from the folder")
    (project / ".env").write_text("SIDE=left")
    shipped = {"name": "shipped", "workdir": ".", "env_file": ".env", "array": 2, "demand": {"cpu": "250m"}}
    command = ["sh", "-c", "cat words.txt; echo $SIDE"]
    (project / "sweep.yaml").write_text(yaml.safe_dump({**shipped, "command": command}))
    code, out, err = await dorm(home, "sweep", "run", str(project / "sweep.yaml"), "--wait")
    assert (code, out) == (0, "shipped: 2 completed\n"), err
    assert err.count("shipped its folder") == 1
    assert "from the folderleft" in await done(home, "logs", "shipped-0001")
    code, out, err = await dorm(home, "wait", "naps")
    assert (code, out, len(err.splitlines())) == (1, "naps: 9 cancelled\n", 5)
    async with cluster.client() as client:
        ends = [app for app in (await client.state()).apps.values() if app.name.startswith("naps-")]
        assert [bool(app.generation) for app in ends].count(True) == 3, "none started in the place of one that ended"


# --- what needs no cluster ----------------------------------------------------------------------------------------------


def test_a_million_apps_are_refused_before_anything_is_sent(here: Dorm, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, sweep={"a": {"range": 1000}, "b": {"range": 1000}})
    code, out, err = here("sweep", "run", file)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "1,000,000 apps" in err
    assert "[sweep.too_many]" in err
    assert "[sweep.too_many]" in here("sweep", "run", "--array", "1001", "--", "true")[2]


def test_a_dry_run_shows_the_specs(here: Dorm, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, sweep={"lr": [0.1, 0.01]}, command=["train", "{lr}"], parallel=1)
    code, out, _ = here("sweep", "run", file, "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "naps: 2 apps, at most 1 at once")
    assert "train 0.01" in out
    specs = json.loads(here("sweep", "run", file, "--dry-run", "-o", "json", "-p", "lr=1,2,3", "--name", "other")[1])
    assert [spec["command"] for spec in specs] == [["train", "1"], ["train", "2"], ["train", "3"]]
    assert specs[2]["name"] == "other-0002"
    words = ("-p", "lr=1,2", "--engine", "torchrun", "--n-min", "2", "--no-workdir", "--", "sh", "-c", "echo {lr}")
    specs = json.loads(here("sweep", "run", "--dry-run", "-o", "json", *words)[1])
    assert [(spec["engine"], spec["n_min"]) for spec in specs] == [("torchrun", 2)] * 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], "usage.nothing_to_do"),
        (["-p", "lr", "--", "true"], "usage.bad_parameter"),
        (["-p", "lr=1", "-p", "lr=2", "--", "true"], "usage.bad_parameter"),
        (["-p", "lr=1..0", "--", "true"], "sweep.values.missing"),
        (["--array", "2", "--", "no-such-program-here"], "run.program.not_found"),
        (["--array", "2", "--folder", "rel", "--", "true"], "usage.bad_parameter"),
        (["--array", "2", "--env", "A", "--", "true"], "usage.bad_parameter"),
        (["FILE", "--cpu", "2"], "usage.conflict"),
        (["FILE"], "usage.nothing_to_do"),
    ],
)
def test_ambiguous_requests_are_refused(here: Dorm, tmp_path: Path, words: list[str], code: str) -> None:
    file = sweep_file(tmp_path)
    exit_code, out, err = here("sweep", "run", *[file if word == "FILE" else word for word in words])
    assert (exit_code, out) == (2, "")
    assert f"[{code}]" in err


def test_other_commands_point_to_it(here: Dorm, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, array=3)
    code, _, err = here("submit", file)
    assert code == 2
    assert "[spec.is_sweep]" in err
    assert "dorm sweep run" in err
