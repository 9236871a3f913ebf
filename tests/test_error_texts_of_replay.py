"""The wording of each error of `replay`, in one table: code, what raises it, text.

Everything else asserts codes, so a sentence is changed here and in the code, nowhere else.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm.core.query.assumed import Assumed
from dorm.core.state import State
from dorm_lab.compare import plots
from dorm_lab.recorded import recording
from dorm_lab.rehearsal import phase_rows
from dorm_lab.workloads import by_name, nodes
from dorm_lab.workloads.outages import poisson
from dorm_lab.workloads.traces import rows
from dorm_lab.workloads.traces.jobs import out_of_order
from events import subjects
from events.codec import encode
from events.errors import DormError
from events.kinds import PolicyChanged
from events.log.records import Record
from replay import moments, stepper
from replay.audit import workers
from replay.audit.audit import verify
from replay.audit.seal_checks import Expected
from replay.export.export import export, format_of
from replay.export.selection import Selection, range_of
from replay.moments import AtSequence, AtTime
from replay.simulator import simulation as simulator
from replay.simulator.contenders import parse_all
from replay.simulator.forks.whatif import whatif
from replay.simulator.scenario import Outage, Scenario
from replay.simulator.simulation import Simulation
from replay.story.explanation import Witness, explain
from replay.story.story import tell
from replay.timeline import lanes
from replay.timeline.fold import timeline
from replay.timeline.lanes import only
from replay.timeline.trace import trace
from replay.travel import state_at
from replay.whole_file import whole_file_now
from tests.replay.audit.test_audit_of_a_part import Part
from tests.replay.made_log import log_of
from tests.simulator.scenarios import app
from tests.simulator.scenarios import nodes as machines

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

SAMPLES = Path(__file__).parent / "dorm_lab" / "workloads" / "samples"
PHILLY = f"philly:{SAMPLES / 'philly.csv'}"
ALIBABA = f"alibaba:{SAMPLES / 'openb'}"
RECORDS = [
    Record(seq, seq * 10**9, subjects.fact("c", "PolicyChanged", "ann"), encode(PolicyChanged())) for seq in (1, 2, 3)
]
LOG = log_of(RECORDS)
EXAMPLE = "16x gpu=4,cpu=32,memory=128GiB; 4x cpu=64 zone=a"


def awaited(made: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], object]:
    return lambda: asyncio.run(made())


def workload(text: str, *, strict: bool = False) -> Callable[[], object]:
    return lambda: by_name.load(text, strict=strict)


def cluster(text: str) -> Callable[[], object]:
    return lambda: nodes.parse(text)


def contenders(*texts: str) -> Callable[[], object]:
    return lambda: parse_all(texts)


def simulation(**change: Any) -> Callable[[], object]:
    return lambda: Simulation(Scenario(**{"apps": (app("a", 0.0, 1.0),), "nodes": machines(1), **change}))


def searched(text: str) -> Callable[[], object]:
    return lambda: stepper.parse(text, State())


def drawn(since: int | None = None, until: int | None = None, **names: Any) -> Callable[[], object]:
    async def draw() -> object:
        at = [None if seq is None else AtSequence(seq) for seq in (since, until)]
        return only(await timeline(LOG, *at), **names)

    return awaited(draw)


def raising(make: Callable[[], DormError]) -> Callable[[], object]:
    """Raise an error that a function makes for its callers."""

    def act() -> object:
        raise make()

    return act


def nothing_drawn() -> object:
    return trace(asyncio.run(timeline(log_of([]))), "empty")


def existing_file() -> object:
    with whole_file_now(Path("/dev/null"), force=False) as file:
        return file


TABLE: list[tuple[str, Callable[[], object], str]] = [
    # moments
    (
        "moment.malformed",
        lambda: moments.parse("noon"),
        "'noon' is not a moment; write a sequence (120), a time (2026-11-21T09:00:00Z) or how long before "
        "the log's end (-10m)",
    ),
    (
        "moment.malformed",
        lambda: moments.parse("-10x"),
        "'-10x': '10x' is not a duration; write 10s, 500ms, 2m or 1h",
    ),
    (
        "moment.out_of_range",
        lambda: moments.parse("-9999d"),
        "'-9999d': '9999d' is not a duration between 0 and a year",
    ),
    ("moment.after_end", awaited(lambda: state_at(LOG, AtSequence(9))), "the log ends at 3, before 9"),
    ("moment.after_end", drawn(since=9), "the log has records 1 to 3, and no record 9"),
    (
        "moment.after_end",
        awaited(lambda: range_of(LOG, Selection(since=AtTime(9 * 10**9)))),
        "the log ends at 3, 1970-01-01 00:00:03 UTC, before that time",
    ),
    (
        "moment.no_records",
        awaited(lambda: range_of(LOG, Selection(since=AtSequence(3), until=AtSequence(2)))),
        "no record lies in that time; the log has records 1 to 3",
    ),
    ("moment.end_before_start", drawn(since=3, until=2), "the end, sequence 2, is before the start, 3"),
    (
        "moment.end_before_start",
        awaited(lambda: tell(LOG, "a", AtSequence(2), since=AtSequence(3))),
        "the start of the story, sequence 3, is after its end, 2",
    ),
    (
        "moment.before_start",
        awaited(lambda: state_at(Part(RECORDS, 2), AtSequence(1))),
        "this part of a log starts after sequence 2, so 1 is not in it",
    ),
    (
        "snapshot.missing",
        awaited(lambda: state_at(Part(RECORDS, 2))),
        "this part of a log starts after sequence 2, and the state there can't be read",
    ),
    # audits
    (
        "snapshot.missing",
        awaited(lambda: verify(Part(RECORDS, 2))),
        "the log starts after sequence 2, and no snapshot that this build reads has the state there",
    ),
    (
        "seal.malformed",
        lambda: Expected.parse("12"),
        "'12' is not SEQUENCE:CHAIN, as `dorm log verify` prints it at its end",
    ),
    # stories, timelines, searches
    (
        "app.not_found",
        lambda: explain(State(), Witness("a"), 0),
        "there was no app 'a' at sequence 0; `dorm state` lists them",
    ),
    (
        "name.not_found",
        awaited(lambda: tell(LOG, "a")),
        "there was no app or node 'a' up to sequence 3; `dorm state` lists them",
    ),
    (
        "node.not_found",
        awaited(lambda: tell(LOG, "a", node=True)),
        "there was no node 'a' up to sequence 3; `dorm state` lists them",
    ),
    ("app.not_found", drawn(apps=["a"]), "there was no app 'a' in this time"),
    ("node.not_found", drawn(nodes=["n9"]), "there was no node 'n9' in this time"),
    ("package.missing", lambda: lanes.need("plotty"), "this timeline needs plotty: pip install 'dorm[plots]'"),
    ("timeline.empty", nothing_drawn, "nothing happened in this time; choose a longer one"),
    (
        "search.kind.unknown",
        searched("kind=Nothing"),
        "there is no kind of event 'Nothing'; kinds are names such as AppSubmitted, Resized and NodeLost",
    ),
    ("search.malformed", searched("x=1"), "'x=1' is not a filter; write kind=…, app=…, user=… or node=…"),
    (
        "name.not_found",
        searched("bob"),
        "'bob' is neither a kind of event nor an app or node here; for one of another moment, write app=bob or node=…",
    ),
    # exports
    ("file.exists", existing_file, "/dev/null already exists; choose another name, or replace it with --force"),
    (
        "export.not_written",
        awaited(lambda: export(LOG, Path("/nowhere/log.dorm"))),
        "/nowhere/log.dorm: No such file or directory",
    ),
    (
        "export.format.unknown",
        lambda: format_of(Path("log.csv")),
        "log.csv: the file's ending names no format; use .dorm, .parquet, .ndjson, .ndjson.gz or .ndjson.zst, or give "
        "--format",
    ),
    # simulations
    ("package.missing", lambda: plots.need("plotty"), "this needs plotty: pip install 'dorm[plots]'"),
    (
        "simulation.model.missing",
        raising(lambda: simulator._no_model("a-1")),
        "app a-1 has no model of its work; give one",
    ),
    (
        "simulation.node.given_twice",
        simulation(nodes=machines(1) * 2),
        "two nodes of the scenario have the same name; give each its own",
    ),
    (
        "simulation.outage.unknown_node",
        simulation(outages=(Outage("n7", 1.0, 1.0),)),
        "outage of n7: the scenario has no such node",
    ),
    (
        "simulation.outage.out_of_range",
        simulation(outages=(Outage("n0", 1.0, float("nan")),)),
        "outage of n0: its start and its length must be finite numbers of seconds",
    ),
    (
        "simulation.outage.out_of_range",
        lambda: poisson(machines(1), mtbf_s=0.0, repair_s=1.0, until_s=10.0),
        "the mean time between failures must be more than 0 seconds, and the mean repair at least 0",
    ),
    (
        "simulation.outage.too_many",
        lambda: poisson(machines(1), mtbf_s=0.001, repair_s=0.0, until_s=3000.0),
        "more than 1,000,000 outages; choose a longer time between failures",
    ),
    (
        "simulation.app.out_of_range",
        simulation(apps=(app("a", float("inf"), 1.0),)),
        "a: submitted at inf s with 1.0 of work; both must be finite numbers",
    ),
    (
        "simulation.no_adjustments",
        lambda: phase_rows([], []),
        "no adjustment was finished, so none can be compared",
    ),
    (
        "log.not_whole",
        lambda: recording([]),
        "timings come from a whole log; give one that starts with its first record",
    ),
    (
        "log.empty",
        awaited(lambda: whatif(log_of([]), None, Assumed())),
        "the log is empty, so nothing can be continued",
    ),
    (
        "whatif.no_apps",
        awaited(lambda: whatif(LOG, None, Assumed())),
        "no app runs, waits or comes after sequence 3; fork the log earlier (--from), or submit one",
    ),
    # contenders
    ("contender.malformed", contenders(":dorm"), "':dorm': write LABEL:policy or the policy alone"),
    ("contender.malformed", contenders("dorm,=1"), "'dorm,=1': write policy,key=value,…; '=1' is not key=value"),
    (
        "contender.given_twice",
        contenders("dorm", "dorm"),
        "'dorm' is given twice; LABEL:dorm gives one of them another name",
    ),
    ("contender.parameter.given_twice", contenders("dorm,a=1,a=1"), "'dorm,a=1,a=1': a is given twice"),
    ("contender.parameter.not_yaml", contenders("dorm,a=["), "'dorm,a=[': the value of a is not YAML: '['"),
    (
        "timings.unknown",
        contenders("dorm,timings=slow"),
        "unknown timings 'slow'; choose docker, live, free or pause=SECONDS",
    ),
    ("timings.malformed", contenders("dorm,pause=soon"), "pause: 'soon' is not a number of seconds"),
    ("timings.out_of_range", contenders("dorm,pause=-1"), "pause: -1 is not between 0 and 1e9 seconds"),
    ("timings.out_of_range", contenders("task-level,task_s=0"), "'task-level,task_s=0': task_s must be more than 0"),
    (
        "timings.given_twice",
        contenders("dorm,pause=1,timings=live"),
        "'dorm,pause=1,timings=live': timings and pause exclude each other; give one of them",
    ),
    # workloads
    (
        "workload.unknown",
        workload("papr"),
        "unknown workload 'papr'; write paper, parametric, philly:FILE, alibaba:FILE, swf:FILE, csv:FILE or pollux:FILE",
    ),
    ("workload.file.missing", workload("philly"), "workload philly: write its file after a colon: philly:FILE"),
    (
        "workload.file.not_taken",
        workload("paper:file"),
        "workload paper takes no file; write its options after a comma: paper,name=value",
    ),
    ("workload.option.unknown", workload("paper,hour=3"), "workload paper: unknown option 'hour'; did you mean hours?"),
    (
        "workload.option.given_twice",
        workload("paper,hours=3,hours=4"),
        "workload 'paper,hours=3,hours=4': hours is given twice",
    ),
    (
        "workload.option.malformed",
        workload("parametric,apps="),
        "workload parametric: apps: the value after = is missing",
    ),
    (
        "workload.option.out_of_range",
        workload("paper,hours=0"),
        "workload paper: hours: expected a number above 0, at most 10000, got '0'",
    ),
    (
        "workload.option.malformed",
        workload("parametric,work=lognormal:3h"),
        "workload parametric: work: lognormal takes 2 values, got 'lognormal:3h'",
    ),
    (
        "workload.option.out_of_range",
        workload("parametric,work=uniform:5:1"),
        "workload parametric: work: 'uniform:5:1': the first value is more than the second",
    ),
    (
        "workload.option.missing",
        workload("csv:x,duration=y,cpu=1"),
        "workload csv: submit: missing; write submit=COLUMN",
    ),
    (
        "workload.option.missing",
        workload("csv:x,submit=y,duration=z"),
        "workload csv: demand: missing; give at least one of cpu=, memory= and gpu=, as a column or an amount per container",
    ),
    (
        "spec.demand.malformed",
        workload("parametric,cpu=many"),
        "workload parametric: demand.cpu: 'many' is not a quantity; write 2, 0.5 or 500m",
    ),
    (
        "workload.too_long",
        workload("parametric,apps=1,work=1h,n_max=1,speed=table:1:1e-9"),
        "workload parametric: app-1 would run with 1 container for more than a hundred years",
    ),
    (
        "workload.window.empty",
        workload(f"{PHILLY},from=2017-10-10,to=2017-10-09"),
        f"{SAMPLES / 'philly.csv'}: from=2017-10-10 is not before to=2017-10-09",
    ),
    (
        "workload.window.malformed",
        workload(f"{PHILLY},from=soon"),
        f"{SAMPLES / 'philly.csv'}: from: 'soon' is neither a date such as 2017-10-01 nor a time such as 5d or 12h",
    ),
    (
        "workload.window.no_dates",
        workload(f"{ALIBABA},from=2023-01-01"),
        f"{SAMPLES / 'openb' / 'openb_pod_list_default.csv'}: the trace has no dates; write from=5d, counted from its start",
    ),
    # traces
    (
        "trace.no_jobs",
        workload(f"{PHILLY},from=2018-01-01"),
        f"{SAMPLES / 'philly.csv'}: no job is left: 3 rows are valid but outside the selection, 4 are skipped; "
        "the first, line 4: duration is negative ('-5.0')",
    ),
    ("system.enoent", workload("swf:/nowhere"), "/nowhere: No such file or directory"),
    ("trace.empty", workload("philly:/dev/null"), "/dev/null: the file is empty; its first line must name the columns"),
    (
        "trace.line.too_long",
        workload("philly:/dev/zero"),
        "/dev/zero:1: the line has more than 1,048,576 characters; this is not a trace",
    ),
    (
        "trace.value.out_of_range",
        workload(PHILLY, strict=True),
        f"{SAMPLES / 'philly.csv'}:4: duration is negative ('-5.0')",
    ),
    ("trace.value.malformed", lambda: rows.number("x", "time", most=9), "time is 'x', which is not a number"),
    ("trace.value.malformed", lambda: rows.number(" ", "time", most=9), "time is empty, which is not a number"),
    ("trace.value.out_of_range", lambda: rows.number("10", "time", most=9), "time is '10', more than 9"),
    (
        "trace.value.malformed",
        lambda: rows.count("1.5", "gpus"),
        "gpus is '1.5', expected a whole number of at least 1",
    ),
    ("trace.value.out_of_range", lambda: rows.run_time("0", "run"), "run is 0"),
    (
        "trace.value.malformed",
        lambda: rows.moment("noon", "at"),
        "at is 'noon', which is not a time such as 2017-10-09 07:01:55",
    ),
    ("trace.value.out_of_range", lambda: rows.moment("1969-01-01", "at"), "at is '1969-01-01', before 1970"),
    (
        "trace.column.missing",
        workload(f"pollux:{SAMPLES / 'philly.csv'},profiles=/nowhere"),
        f"{SAMPLES / 'philly.csv'}: there is no column 'name'; it has timestamp, duration, num_gpus, gpu_time, cluster",
    ),
    (
        "trace.not_in_order",
        raising(lambda: out_of_order(Path("log.swf"), 3)),
        "log.swf:3: submitted before the row above; rows must be in order of submission",
    ),
    # clusters
    ("nodes.malformed", cluster(""), f"nodes '': a group is empty; write {EXAMPLE}"),
    (
        "nodes.malformed",
        cluster("cpu=lots"),
        f"nodes 'cpu=lots': cpu: 'lots' is not a quantity; write 2, 0.5 or 500m, as in {EXAMPLE}",
    ),
    ("nodes.all_zero", cluster("cpu=0"), f"nodes 'cpu=0': a node needs at least one resource; write {EXAMPLE}"),
    ("nodes.out_of_range", cluster("0x cpu=1"), "nodes '0x cpu=1': expected 1 to 100,000 nodes, got 0"),
    ("nodes.label.malformed", cluster("cpu=1 zone"), "nodes 'cpu=1 zone': 'zone' is not a label; write name=value"),
    (
        "nodes.resource.missing",
        lambda: nodes.sized(by_name.load("parametric,apps=3"), {"cpu": 4000}),
        "workload parametric needs memory, which these nodes lack",
    ),
    (
        "workload.too_short",
        lambda: nodes.sized(by_name.load("parametric,apps=1"), {"cpu": 4000}),
        "workload parametric is too short to size a cluster for; name the nodes",
    ),
    (
        "spec.n_min.no_room",
        lambda: nodes.fitting(by_name.load("parametric,apps=1,n_max=1"), nodes.parse("cpu=1"), strict=True),
        "workload parametric: app-1 needs 1 container of 2 cores, 4 GiB; the empty cluster holds 0",
    ),
]


@pytest.mark.parametrize(("code", "act", "text"), TABLE, ids=[f"{code}-{text[:20]}" for code, _, text in TABLE])
def test_an_error_has_its_code_and_advice(code: str, act: Callable[[], object], text: str) -> None:
    with pytest.raises(DormError) as raised:
        act()
    assert (raised.value.code, str(raised.value)) == (code, text)


def test_a_lost_process_of_an_audit_gives_advice() -> None:
    advice = "; with `--jobs 1` there is only one, which takes less memory"
    assert workers._ended(-9) == f"a process of the audit was killed (SIGKILL){advice}"
    assert workers._ended(3) == f"a process of the audit ended with code 3{advice}"
