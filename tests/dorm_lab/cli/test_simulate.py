"""`dorm simulate`: the comparison in every form, the log of a run, and errors for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dorm_lab.cli.simulate import complete_contender, complete_workload, log_file

if TYPE_CHECKING:
    from tests.cli.conftest import Dorm

SAMPLES = Path(__file__).parents[1] / "workloads" / "samples"
SMALL = "parametric,apps=5,arrival=exponential:2m,work=lognormal:10m:0.5,n_max=4"
CLUSTER = ("--nodes", "2x cpu=4,memory=32GiB", "--workers", "1")


def test_policies_side_by_side(here: Dorm) -> None:
    code, out, err = here("simulate", SMALL, *CLUSTER, "-p", "dorm,static,app-level", "-p", "many:static,count=4")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "parametric: 5 apps on 2 nodes, seed 0"
    assert lines[2].split("  ")[0] == "POLICY"
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["dorm", "5/5"], ["static", "5/5"], ["app-level", "5/5"], ["many", "5/5"],
    ]  # fmt: skip
    assert lines[4].split()[-1] == "×1.00"
    assert lines[8].startswith("utilization and fairness loss: means over the first")
    assert lines[9] == "speed-up: how much faster an app is done than under static, on average"
    assert lines[10] == "static: the same number of containers for each app (2)"


@pytest.mark.soak
def test_the_same_document_every_time_and_a_spread_over_seeds(here: Dorm) -> None:
    words = ("simulate", SMALL, *CLUSTER, "-p", "dorm", "--seeds", "2", "-o", "json")
    code, out, _ = here(*words)
    assert code == 0
    assert here(*words)[1] == out
    (dorm,) = json.loads(out)["policies"]
    assert [run["seed"] for run in dorm["runs"]] == [0, 1]
    means = [run["completion_s"] for run in dorm["runs"]]
    assert dorm["completion_s"]["low"] == pytest.approx(min(means))
    assert dorm["completion_s"]["mean"] == pytest.approx(sum(means) / 2)
    apps = json.loads(here(*words, "--apps")[1])["policies"][0]["runs"][0]["apps"]
    assert [app["how"] for app in apps] == ["completed"] * 5
    assert sum(app["completion_s"] for app in apps) / 5 == pytest.approx(means[0])
    assert "±" in here(*words[:-1], "table")[1]


def test_the_file_ending_determines_the_format(here: Dorm, tmp_path: Path) -> None:
    signs = {"html": b"<!DOCTYPE html>", "json": b"{"}
    for ending, sign in signs.items():
        path = tmp_path / f"compared.{ending}"
        code, out, _ = here("simulate", SMALL, *CLUSTER, "-o", path)
        assert code == 0
        assert f"2 policies are compared in {path}" in out
        assert path.read_bytes()[: len(sign)].lower() == sign.lower()
    code, _, err = here("simulate", SMALL, *CLUSTER, "-o", path)
    assert (code, f"{path} " in err, err.endswith(" [file.exists]\n")) == (1, True, True)


def test_the_log_of_a_run_is_an_ordinary_one(here: Dorm, tmp_path: Path) -> None:
    log = tmp_path / "run.dorm"
    assert here("simulate", SMALL, *CLUSTER, "-p", "dorm", "--log", log)[0] == 0
    code, out, _ = here("replay", "verify", "--file", log)
    assert (code, "gave the same state and the same decisions" in out) == (0, True)
    for words, said in (
        (("story", "app-3"), "completed"),
        (("state", "--at", "20"), "app-1"),
        (("explain", "app-5", "--brief"), "app-5"),
        (("events", "--kind", "Resized"), "Resized"),
    ):
        code, out, err = here(*words, "--file", log)
        assert (code, said in out) == (0, True), (words, out, err)
    picture = tmp_path / "trace.json"
    assert here("replay", "timeline", "--file", log, "-o", picture)[0] == 0
    assert "app-4" in picture.read_text()


def test_each_of_several_runs_has_a_log_of_its_own(here: Dorm, tmp_path: Path) -> None:
    words = ("simulate", SMALL, *CLUSTER, "-p", "static,count=1", "-p", "static", "--log", tmp_path / "run.dorm")
    assert here(*words)[0] == 0
    names = sorted(path.name for path in tmp_path.glob("*.dorm"))
    assert names == ["run-static-count-1-seed-0.dorm", "run-static-seed-0.dorm"]
    code, _, err = here(*words)
    assert code == 1
    assert "[file.exists]" in err
    assert log_file(None, "a", 1, alone=False) is None


def test_apps_that_cannot_run_and_unfinished_ones_are_reported(here: Dorm) -> None:
    mixed = "parametric,apps=9,arrival=exponential:2m,work=lognormal:10m:0.5,n_max=4,cpu=3,n_min=1:2:3"
    code, _, err = here("simulate", mixed, *CLUSTER, "-p", "static")
    assert code == 0
    assert err.startswith("5 apps skipped (app-1 needs 3 containers of 3 cores")
    assert "the empty cluster holds 2" in err
    code, _, err = here("simulate", mixed, *CLUSTER, "-p", "static", "--strict")
    assert (code, err.count("\n")) == (1, 1)
    code, _, err = here("simulate", SMALL, *CLUSTER, "-p", "static", "--until", "5m")
    assert code == 0, "it was to be cut"
    assert "had not ended when the simulation did" in err


def test_rounds_timings_and_crashes_make_it_slower(here: Dorm) -> None:
    def completion_s(*words: str) -> float:
        code, out, _ = here("simulate", SMALL, *CLUSTER, "-p", "dorm", "-o", "json", *words)
        assert code == 0
        mean: float = json.loads(out)["policies"][0]["completion_s"]["mean"]
        return mean

    best = completion_s("--timings", "free")
    assert best < completion_s("--timings", "pause=120")
    assert best < completion_s("--timings", "free", "--rounds", "300")
    assert best < completion_s("--timings", "free", "--mtbf", "10m", "--repair", "2m")


def test_optimus_without_declared_speeds_gives_a_warning(here: Dorm) -> None:
    assert "told=yes" in here("simulate", SMALL, *CLUSTER, "-p", "optimus")[2]
    assert here("simulate", f"{SMALL},told=yes", *CLUSTER, "-p", "optimus")[2] == ""


def test_the_paper_has_its_own_cluster_and_static_counts(here: Dorm) -> None:
    _, out, _ = here("simulate", "paper", "-p", "static", "--until", "30m", "-o", "json")
    (static,) = json.loads(out)["policies"]
    assert static["params"]["counts"]["lr-*"] == 8
    assert json.loads(out)["settings"]["nodes"] == 20


def test_fixed_counts_of_a_trace_are_those_of_its_jobs(here: Dorm) -> None:
    trace = f"philly:{SAMPLES / 'philly.csv'}"
    shape = ("--nodes", "2x gpu=8,cpu=64,memory=512GiB", "--workers", "1", "-p", "static")
    code, out, err = here("simulate", trace, *shape, "-o", "json")
    assert code == 0
    assert "row" in err, "the sample has bad rows, which are said"
    document = json.loads(out)
    (static,) = document["policies"]
    assert static["params"]["counts"]
    assert all(key == f"x{count}-*" for key, count in static["params"]["counts"].items())
    assert document["workload"]["skipped"]
    assert here("simulate", trace, *shape, "--strict")[0] == 1
    given = json.loads(here("simulate", trace, *shape[:-1], "static,count=1", "-o", "json")[1])
    assert given["policies"][0]["params"] == {"count": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lottery"], "[workload.unknown]"),
        (["philly:"], "[workload.file.missing]"),
        (["csv:/dev/null"], "write submit=COLUMN"),
        (["paper", "-p", "lottery"], "unknown policy 'lottery'"),
        (["paper", "-p", "dorm,theta1=7"], "theta1 has to be between"),
        (
            ["paper", "--base", "static", "-p", "dorm"],
            "--base 'static' is not among the policies that are compared: dorm",
        ),
        ([SMALL], "parametric names no cluster; say --nodes"),
        ([SMALL, "--nodes", "3 cpu"], "nodes "),
        ([SMALL, "--load", "0.8"], "--load needs the shape of a node"),
        ([SMALL, "--load", "0.8", "--nodes", "2x cpu=4"], "--load needs one shape"),
        (["paper", "--timings", "slow"], "[timings.unknown]"),
        (["paper", "--until", "soon"], "'soon' is not a duration"),
        (["paper", "--rounds", "900"], "--rounds"),
        (["paper", "--mtbf", "often"], "'often' is not a duration"),
        (["paper", "--mtbf", "0s"], "[simulation.outage.out_of_range]"),
        (["paper", "-o", "comparison.pdf"], "'comparison.pdf' is neither one of table, wide"),
        (["paper", "--log", "-"], "-: name a file that ends in .dorm"),
        (["paper,hours=-1"], "hours"),
    ],
)
def test_wrong_usage_is_one_line(here: Dorm, words: list[str], message: str) -> None:
    code, out, err = here("simulate", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_in_a_folder_that_is_not_there_is_refused_before_anything_runs(here: Dorm, tmp_path: Path) -> None:
    code, _, err = here("simulate", "paper", "-o", tmp_path / "none" / "x.png")
    assert (code, f"{tmp_path}/none/x.png" in err, err.endswith(" [file.no_folder]\n")) == (1, True, True)


def test_completion() -> None:
    assert complete_workload("pa") == ["paper", "parametric"]
    assert complete_contender("sta") == ["static"]
    assert complete_contender("dorm,theta") == ["dorm,theta1=", "dorm,theta2="]
    assert complete_contender("dorm,theta1=0.2,sta") == ["dorm,theta1=0.2,static"]
    assert complete_contender("dorm,static,c") == ["dorm,static,count=", "dorm,static,counts="]
