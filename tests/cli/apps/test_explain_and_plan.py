"""`dorm explain` and `dorm plan`: output and exit codes, on exported logs and on a running cluster."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dorm.core.query.views import sizes
from events.kinds import LogSealed, NodeDrainRequested, PolicyChanged
from events.positions import logged
from replay.export.export import export
from tests.core.records import Bench, document, joined
from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import leaving_nothing, named, talker, up, write_spec
from tests.e2e.story import until
from tests.events.log.readable_conformance import read_all
from tests.replay.made_log import log_of, two_apps

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog
    from tests.cli.conftest import Dorm


def saved(records: list[Any], path: Path) -> Path:
    asyncio.run(export(log_of(records), path))
    return path


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """One node with four cores, all taken; another app waits for two of them."""
    bench = Bench()
    bench.add(PolicyChanged(policy="dorm-exact"))
    bench.add(joined("n1", 4, labels={"zone": "a"}))
    bench.running("full", n_min=4, n_max=4)
    bench.submit("late", n_min=2, n_max=4)
    bench.submit("big", cpu=9)
    bench.settle()
    assert bench.app("late").phase == "waiting"
    return saved(bench.records, tmp_path / "log.dorm")


async def written(log: ReadableLog, after: int) -> list[str]:
    """Kinds of what came after a sequence, without the master's seals, which come by the clock."""
    records = await read_all(log, after)
    return [
        type(one.event).__name__ for record in records for one in logged(record) if not isinstance(one.event, LogSealed)
    ]


def spec_file(tmp_path: Path, name: str, **fields: Any) -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(json.dumps(document(name, **fields)))
    return path


def test_explain_for_people(here: Dorm, log_file: Path) -> None:
    code, out, err = here("explain", "late", "--file", log_file)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "late is waiting and has had no containers" in words
    assert "it needs at least 2 and can use 4" in words
    assert "It waits because " in words
    for label in ("containers", "share", "reason", "decision", "figures"):
        assert f"\n  {label} " in out
    code, out, _ = here("explain", "full", "--file", log_file)
    assert code == 0
    assert "full is running with all 4 containers, on n1 (4)" in out
    assert "last change" in out


def test_explain_for_programs(here: Dorm, log_file: Path) -> None:
    code, out, _ = here("explain", "late", "--file", log_file, "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert (found["state"], found["phase"], found["containers"]) == ("live", "waiting", 0)
    assert found["reason"]["code"]
    assert found["reason"]["text"] in found["text"]
    seq, index = map(int, found["decision"]["position"].split("."))
    assert 0 < seq <= found["seq"]
    assert index >= 0
    assert found["share"] == 0
    assert found["fair_share"] > 0
    code, out, _ = here("explain", "late", "--file", log_file, "-o", "yaml")
    assert yaml.safe_load(out) == found


def test_explain_shows_the_cost_of_an_adjustment(here: Dorm, tmp_path: Path) -> None:
    bench = Bench(n1=4)
    bench.add(PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    bench.submit("new", n_max=4)
    bench.settle()
    bench.wait(2)
    bench.all_exited("app", 143, generation=1, asked=True)
    bench.settle()
    bench.wait(3)
    bench.started("app")
    code, out, _ = here("explain", "app", "--file", saved(bench.records, tmp_path / "log.dorm"))
    assert code == 0
    assert (
        "1 time, lost work unknown; the last: stop 2.000 s, wait 0.000 s, start 3.000 s; one costs 5.0 s of its work"
        in out
    )


def test_explain_at_any_moment(here: Dorm, tmp_path: Path) -> None:
    records = two_apps().records
    path = saved(records, tmp_path / "story.dorm")
    phases = set()
    for at in (*range(4, len(records), 6), "-1s"):
        code, out, _ = here("explain", "one", "--file", path, "--at", at, "-o", "json")
        assert code == 0
        phases.add(json.loads(out)["phase"])
    assert {"running", "failed", "pending"} & phases
    assert len(phases) > 2
    code, out, _ = here("explain", "one", "--file", path, "--at", len(records))
    assert out.startswith(f"as it was at sequence {len(records)}, ")


def test_explain_an_app_that_never_ran(here: Dorm, log_file: Path) -> None:
    code, out, _ = here("explain", "big", "--file", log_file)
    assert code == 0
    assert "big was refused at " in out
    assert "one container needs 9 cores" in " ".join(out.split())
    code, out, err = here("explain", "ful", "--file", log_file)
    assert (code, out) == (1, "")
    assert "did you mean full? [app.not_found]" in err
    assert len(err.splitlines()) == 1


def test_plan_as_things_are(here: Dorm, log_file: Path) -> None:
    code, out, err = here("plan", "--file", log_file)
    assert (code, err) == (0, "")
    assert "no app would change" in out
    assert "late" in out
    assert "UTILIZATION" in out


def test_plan_with_more_nodes(here: Dorm, log_file: Path) -> None:
    more = ["--nodes", "+1,cpu=2,label.zone=b", "--nodes", "+2,like=n1"]
    code, out, err = here("plan", "--file", log_file, *more)
    assert (code, err) == (3, "")
    assert "if: 1 more node of 2 cores, zone=b (new-1); 2 more nodes of 4 cores, zone=a (new-2 to new-3)" in out
    code, out, _ = here("plan", "--file", log_file, *more, "-o", "json")
    found = json.loads(out)
    assert (code, found["changes"], found["after"]["nodes"]) == (3, True, 4)
    late = next(app for app in found["apps"] if app["name"] == "late")
    assert (late["kind"], late["before"]) == ("start", 0)
    assert late["after"] == sum(late["nodes_after"].values()) >= 2
    code, out, _ = here("plan", "--file", log_file, *more, "-o", "yaml")
    assert yaml.safe_load(out) == found


def test_plan_with_an_app_and_without_another(here: Dorm, log_file: Path, tmp_path: Path) -> None:
    new = spec_file(tmp_path, "new", n_min=1, n_max=1)
    code, out, _ = here("plan", new, "--file", log_file, "--cancel", "full", "--cancel", "late", "-o", "json")
    apps = {app["name"]: app for app in json.loads(out)["apps"]}
    assert code == 3
    assert (apps["full"]["kind"], apps["full"]["end"]) == ("stop", "cancelled")
    assert (apps["new"]["kind"], apps["new"]["after"]) == ("start", 1)
    assert apps["late"]["end"] == "cancelled"
    # Without room it waits, and nothing changes for the others.
    code, out, _ = here("plan", spec_file(tmp_path, "more", n_min=4), "--file", log_file)
    assert code == 0
    assert "more submitted" in out


def test_plan_with_a_node_less(here: Dorm, tmp_path: Path) -> None:
    bench = Bench(n1=2, n2=2)
    bench.add(PolicyChanged(policy="dorm-exact"))
    bench.running("app", n_max=4)
    path = saved(bench.records, tmp_path / "log.dorm")
    plans = []
    for how in (["--nodes", "-n2"], ["--nodes=-n2"], ["--without", "n2"], ["--drain", "n2"]):
        code, out, _ = here("plan", "--file", path, *how, "-o", "json")
        assert code == 3
        (app,) = json.loads(out)["apps"]
        assert (app["kind"], app["nodes_after"]) == ("restart", {"n1": 2})
        assert app["adjust_s"] == 30
        assert not app["measured"]
        plans.append(json.loads(out))
    assert plans[0] == plans[1] == plans[2]


def test_plan_with_a_drained_node_used_again(here: Dorm, tmp_path: Path) -> None:
    bench = Bench(n1=2, n2=2)
    bench.add(PolicyChanged(policy="dorm-exact"))
    bench.add(NodeDrainRequested(node="n2", drain=True))
    bench.submit("app", n_min=4, n_max=4)
    bench.settle()
    path = saved(bench.records, tmp_path / "log.dorm")
    assert here("plan", "--file", path)[0] == 0
    code, out, _ = here("plan", "--file", path, "--undrain", "n2", "-o", "json")
    (app,) = json.loads(out)["apps"]
    assert (code, app["kind"], app["nodes_after"]) == (3, "start", {"n1": 2, "n2": 2})


def test_plan_at_an_earlier_moment(here: Dorm, tmp_path: Path) -> None:
    """A plan from before a decision equals that decision."""
    bench = Bench(n1=4)
    bench.add(PolicyChanged(policy="dorm-exact"))
    bench.submit("app", n_max=3)
    before = len(bench.records)
    bench.settle()
    path = saved(bench.records, tmp_path / "log.dorm")
    code, out, _ = here("plan", "--file", path, "--at", before, "-o", "json")
    (app,) = json.loads(out)["apps"]
    assert (code, app["kind"], app["nodes_after"]) == (3, "start", sizes(bench.app()))


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--nodes", "3"], 2, "usage.nodes.malformed"),
        (["--nodes", "+3"], 2, "usage.nodes.malformed"),
        (["--nodes", "+x,cpu=1"], 2, "usage.nodes.malformed"),
        (["--nodes", "+0,cpu=1"], 2, "usage.nodes.malformed"),
        (["--nodes", "+1,cpu=lots"], 2, "quantity.malformed"),
        (["--nodes", "+1,label.zone=a"], 2, "usage.nodes.malformed"),
        (["--nodes", "+1,cpu"], 2, "quantity.malformed"),
        (["--nodes", "+1,like=n7"], 1, "node.not_found"),
        (["--without", "n7"], 1, "node.not_found"),
        (["--drain", "n7"], 1, "node.not_found"),
        (["--undrain", "n7"], 1, "node.not_found"),
        (["--cancel", "nobody"], 1, "app.not_found"),
        (["--set", "theta9=1"], 2, "settings.unknown"),
        (["--set", "theta2"], 2, "usage.not_a_pair"),
        (["--set", "theta1=7"], 2, "policy.parameter.out_of_range"),
        (["--set", "policy=lottery"], 2, "policy.unknown"),
        (["--rounds", "0"], 2, "usage.bad_parameter"),
        (["--at", "99999"], 1, "moment."),
        (["nowhere.yaml"], 2, "system.enoent"),
        (["FULL"], 1, "spec.name.taken"),
        (["HUGE"], 1, "spec.demand.too_large"),
    ],
)
def test_plan_mistakes_get_one_line(
    here: Dorm, words: list[str], code: int, error: str, log_file: Path, tmp_path: Path
) -> None:
    files = {"FULL": spec_file(tmp_path, "full"), "HUGE": spec_file(tmp_path, "huge", cpu=9)}
    status, out, err = here("plan", "--file", log_file, *(files.get(word, word) for word in words))
    assert (status, out) == (code, "")
    assert f"[{error}" in " ".join(err.split())
    assert len(err.splitlines()) == 1


@pytest.mark.nats
@pytest.mark.slow
async def test_on_a_cluster_that_runs(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder) as cluster, cluster.client() as client:
        home = cluster.home
        first = write_spec(folder, talker("first", demand={"cpu": 1}, n_min=2, n_max=2))
        await done(home, "submit", first)
        state = await until(client, lambda s: named(s, "first").settled, "the first app runs")
        second = write_spec(folder, talker("second", demand={"cpu": 1}))
        end = await client.log.end()
        # Plans of every kind, none of which writes to the log.
        code, out, err = await dorm(home, "plan", second)
        assert (code, err) == (0, ""), out
        assert "second submitted" in out
        code, out, _ = await dorm(home, "plan", second, "--nodes", "+1,like=node-1", "-o", "json")
        apps = {app["name"]: app for app in json.loads(out)["apps"]}
        assert (code, apps["second"]["nodes_after"]) == (3, {"new-1": 1})
        assert apps["first"]["nodes_after"] == sizes(named(state, "first"))
        for words in (["--nodes", "-node-2"], ["--drain", "node-2"], ["--cancel", "first"], ["--set", "theta2=0.5"]):
            code, out, err = await dorm(home, "plan", *words)
            assert code in (0, 3)
            assert err == ""
        assert "[spec.name.taken]" in await refused(home, "plan", first, code=1)
        assert await written(client.log, end) == []
        # The messages for a waiting app, now and before it was submitted.
        await done(home, "submit", second)
        state = await until(client, lambda s: named(s, "second").waiting is not None, "the second waits, and why")
        waiting = named(state, "second").waiting
        assert waiting is not None
        found = json.loads(await done(home, "explain", "second", "-o", "json"))
        assert (found["phase"], found["reason"]["text"]) == ("waiting", waiting.text)
        assert found["decision"]["position"].split(".")[0] == str(state.figures.seq)
        assert "second waits" in " ".join(
            (await done(home, "explain", "second")).replace("It waits", "second waits").split()
        )
        assert "'second'" in await refused(home, "explain", "second", "--at", str(end), code=1)
        for command, incomplete, wanted in (
            ("plan --nodes", "", "-node-1"),
            ("plan --nodes", "+2,like=node", "+2,like=node-1"),
            ("plan --drain", "node", "node-1"),
            ("plan --cancel", "f", "first"),
            ("explain", "s", "second"),
        ):
            line = f"dorm {command} {incomplete}"
            env = {"_DORM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(command.split()) + 1)}
            _, out, _ = await dorm(home, env=env)
            assert wanted in out.split(), (line, out)
