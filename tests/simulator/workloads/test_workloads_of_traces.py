"""Traces become workloads, and what is wrong with a row is said of that row."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events import kinds as k
from replay.simulator import SimulationError
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.workloads import by_name as workloads
from replay.simulator.workloads import nodes

if TYPE_CHECKING:
    from replay.simulator.workloads.workload import Workload

SAMPLES = Path(__file__).parent / "samples"
PHILLY = f"philly:{SAMPLES / 'philly.csv'}"
ALIBABA = f"alibaba:{SAMPLES / 'openb'}"
SWF = f"swf:{SAMPLES / 'small.swf'}"
MAPPING = "submit=created,duration=runtime,containers=gpus,cpu=cores,memory=mem_mb:MB,user=team,name=id,weight=prio"
CSV = f"csv:{SAMPLES / 'jobs.csv'},delimiter=semicolon,{MAPPING}"
ALL = (PHILLY, ALIBABA, SWF, CSV)
KINDS = tuple(text.partition(":")[0] for text in ALL)


def apps(workload: Workload) -> list[tuple[int, str, float, float, int, int]]:
    return [(a.line, a.spec.name, a.at_s, a.work, a.spec.n_min, a.spec.n_max) for a in workload.apps]


def why(workload: Workload) -> dict[int, str]:
    return {one.line: one.reason for one in workload.skipped}


def refused(text: str, *, strict: bool = False) -> str:
    with pytest.raises(SimulationError) as caught:
        workloads.load(text, strict=strict)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestPhilly:
    def test_a_container_for_each_gpu_and_the_work_that_its_job_did(self) -> None:
        workload = workloads.load(PHILLY)
        assert apps(workload) == [
            (3, "job-3", 0.0, 4 * 2951.0, 1, 8),
            (2, "job-2", 2932.0, 66.0, 1, 2),
            (8, "job-8", 236817.0, 2 * 120.5, 1, 4),
        ]
        assert {app.spec.user for app in workload.apps} == {"6214e9", "11cb48", "a_b_c"}
        assert workload.apps[0].spec.resources() == {"gpu": 1}

    def test_what_is_broken_is_named_with_its_line(self) -> None:
        workload = workloads.load(PHILLY)
        assert why(workload) == {
            4: "duration is negative ('-5.0')",
            5: "timestamp is '2017-10-09 25:00:00', which is no time such as 2017-10-09 07:01:55",
            6: "3 fields instead of 5",
            7: "num_gpus is 'two', which is no number",
        }
        assert (workload.rows, workload.cut, workload.unsorted) == (7, 0, (3,))

    def test_strict_refuses_the_first_of_them(self) -> None:
        assert refused(PHILLY, strict=True) == f"{SAMPLES / 'philly.csv'}:4: duration is negative ('-5.0')"

    def test_its_rows_may_be_in_any_order_even_so(self, tmp_path: Path) -> None:
        file = tmp_path / "sound.csv"
        file.write_text("".join((SAMPLES / "philly.csv").read_text().splitlines(keepends=True)[:3]))
        assert len(workloads.load(f"philly:{file}", strict=True).apps) == 2

    def test_another_header_is_another_format(self, tmp_path: Path) -> None:
        file = tmp_path / "other.csv"
        file.write_text("timestamp,duration,num_gpus,vc\n2017-10-09 07:01:55,66.0,1,a\n")
        assert len(workloads.load(f"philly:{file}").apps) == 1
        assert "the format has no column 'vc'" in refused(f"philly:{file}", strict=True)
        file.write_text("time,duration,num_gpus\n")
        assert "there is no column 'timestamp'; it has time, duration, num_gpus" in refused(f"philly:{file}")

    def test_a_file_without_line_ends_does_not_fill_the_memory(self) -> None:
        assert "/dev/zero:1: the line does not end" in refused("philly:/dev/zero")

    def test_its_own_nodes_are_not_in_it_and_cores_beside_a_gpu_can_be_given(self) -> None:
        workload = workloads.load(f"{PHILLY},cpu=6,memory=64GiB")
        assert workload.nodes == ()
        assert workload.apps[0].spec.resources() == {"cpu": 6000, "gpu": 1, "memory": 64 * 2**30}


class TestAlibaba:
    def test_pods_with_shares_of_gpus_on_their_nodes(self) -> None:
        workload = workloads.load(f"{ALIBABA},bounds=rigid")
        assert apps(workload) == [
            (2, "pod-0", 0.0, 800.0, 1, 1),  # From when it was scheduled.
            (3, "pod-1", 50.0, 950.0, 1, 1),
            (4, "pod-2", 60.0, 430.0, 1, 1),
            (8, "pod-0-2", 95.0, 100.0, 1, 1),
        ]
        assert workload.apps[0].spec.resources() == {"cpu": 12_000, "gpu_milli": 460, "memory": 2**34}
        assert workload.apps[2].spec.resources()["gpu_milli"] == 8000
        assert workload.apps[2].spec.require == 'gpu_type in ["V100M16", "V100M32"]'
        assert [node.capacity.get("gpu_milli") for node in workload.nodes] == [None, 2000, 8000]
        assert "1 jobs had a name that was taken" in workload.assumptions[-1]

    def test_what_is_left_out(self) -> None:
        workload = workloads.load(ALIBABA)
        assert why(workload) == {
            5: 'pod-3 needs 1 containers of 4 cores, 8000 gpu_milli, 8 GiB where gpu_type in ["P100"]; '
            "the empty cluster holds 0",
            6: "it was never scheduled",
            7: "it was created at 90, scheduled at 95 and deleted at 80",
        }
        assert [one.broken for one in workload.skipped] == [True, False, True]

    def test_strict_refuses_what_is_broken_and_not_what_never_ran(self, tmp_path: Path) -> None:
        for name in ("openb_node_list_all_node.csv", "openb_pod_list_default.csv"):
            (tmp_path / name).write_text((SAMPLES / "openb" / name).read_text())
        pods = tmp_path / "openb_pod_list_default.csv"
        assert f"{pods}:7: it was created at 90" in refused(f"alibaba:{tmp_path}", strict=True)
        lines = pods.read_text().splitlines(keepends=True)
        pods.write_text("".join(lines[:6]))
        assert "line 5: pod-3 needs 1 containers" in refused(f"alibaba:{tmp_path}", strict=True)
        pods.write_text("".join(lines[:4] + lines[5:6]))
        assert len(workloads.load(f"alibaba:{tmp_path}", strict=True).apps) == 3

    def test_a_broken_node_is_always_refused(self, tmp_path: Path) -> None:
        nodes_file, pods = tmp_path / "openb_node_list_all_node.csv", tmp_path / "openb_pod_list_default.csv"
        pods.write_text((SAMPLES / "openb" / pods.name).read_text())
        for row, says in [
            ("n,1000,x,0,", "memory_mib is 'x'"),
            (",1,1,0,", "no name"),
            ("n,1,1,0,\nn,1,1,0,", "twice"),
        ]:
            nodes_file.write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{row}\n")
            assert says in refused(f"alibaba:{tmp_path}")


class TestStandardWorkloadFormat:
    def test_requested_processors_else_allocated_ones(self) -> None:
        workload = workloads.load(f"{SWF},bounds=rigid")
        assert apps(workload) == [
            (6, "job-6", 0.0, 400.0, 4, 4),
            (9, "job-9", 40.0, 30.0, 1, 1),
            (8, "job-8", 60.0, 90.0, 3, 3),
        ]
        assert [node.capacity for node in workload.nodes] == [{"cpu": 5000}, {"cpu": 4000}]
        assert workload.unsorted == (9,)

    def test_unknown_cancelled_and_partial_jobs(self) -> None:
        workload = workloads.load(f"{SWF},bounds=rigid")
        assert why(workload) == {
            7: "it never ran",
            10: "the run time is unknown",
            11: "job-11 needs 16 containers of 1 core; the empty cluster holds 9",
            12: "7 fields instead of 18",
            13: "the submit time is negative ('-1')",
            14: "it is a part of a job, which has a row of its own",
            15: "'x' is no number",
            16: "it ran for less than half a second, or not at all",
        }
        assert [one.line for one in workload.skipped if not one.broken] == [7, 14, 16]

    def test_containers_of_several_cores_and_a_calendar_from_the_header(self) -> None:
        workload = workloads.load(f"{SWF},cores=3,bounds=rigid,from=2001-09-09,to=2001-09-09T01:47:00")
        # UnixStartTime 1,000,000,000 is 01:46:40 that day.
        assert apps(workload) == [(6, "job-6", 6400.0, 200.0, 2, 2)]
        assert workload.apps[0].spec.resources() == {"cpu": 3000}

    def test_strict_refuses_a_row_out_of_order(self, tmp_path: Path) -> None:
        file = tmp_path / "log.swf.gz"
        rows = [
            line for line in (SAMPLES / "small.swf").read_text().splitlines() if line.startswith(("1 ", "3 ", "4 "))
        ]
        file.write_bytes(gzip.compress("\n".join(rows).encode()))
        assert len(workloads.load(f"swf:{file}").apps) == 3
        assert f"{file}:3: submitted before the row above" in refused(f"swf:{file}", strict=True)


class TestTable:
    def test_columns_units_and_amounts(self) -> None:
        workload = workloads.load(f"{CSV},bounds=half")
        assert apps(workload) == [
            (3, "eval", 0.0, 60.0, 1, 2),
            (2, "train-big", 10.0, 7200.0, 1, 4),
            (4, "eval-2", 110.0, 60.0, 1, 2),
        ]
        assert workload.apps[1].spec.resources() == {"cpu": 4000, "memory": 2048 * 10**6}
        assert [(a.spec.user, a.spec.weight) for a in workload.apps] == [("vision", 1), ("vision", 2), ("anonymous", 1)]

    def test_what_is_broken(self) -> None:
        assert why(workloads.load(CSV)) == {
            5: "gpus is '1.5', expected a whole number of at least 1",
            6: "a quote is not closed in its line",
            7: "created is '2017-10-09', and the rows above have seconds",
            8: "weight: expected a number of at least 0.001, got 0.0",
        }

    @pytest.mark.parametrize(
        ("mapping", "says"),
        [
            ("duration=runtime,cpu=1", "write submit=COLUMN"),
            ("submit=created,duration=runtime", "write cpu=, memory= or gpu="),
            ("submit=when,duration=runtime,cpu=1", "there is no column 'when'; it has id, created"),
            ("submit=created,duration=runtime,cpu=coers", "'coers' is neither a column (id, created"),
            ("submit=created,duration=runtime,cpu=1,colour=red", "there is no option 'colour'"),
        ],
    )
    def test_a_mapping_that_does_not_fit(self, mapping: str, says: str) -> None:
        assert says in refused(f"csv:{SAMPLES / 'jobs.csv'},delimiter=semicolon,{mapping}")

    def test_bounds_of_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "own.csv"
        file.write_text("at,s,low,high\n2017-10-01,5,2,6\n2017-10-02T00:00:00+02:00,5,3,2\n2017-10-03,5,1,1\n")
        workload = workloads.load(f"csv:{file},submit=at,duration=s,n_min=low,n_max=high,cpu=1")
        assert [(app.at_s, app.spec.n_min, app.spec.n_max) for app in workload.apps] == [(0, 2, 6), (2 * 86400, 1, 1)]
        assert why(workload) == {3: "its least containers, 3, are more than its most, 2"}


class TestCuts:
    def test_a_window_keeps_the_time_from_its_begin(self) -> None:
        workload = workloads.load(f"{PHILLY},from=2017-10-09T07:00,to=2017-10-12")
        assert apps(workload) == [(2, "job-2", 115.0, 66.0, 1, 2)]
        assert (workload.rows, workload.cut) == (7, 2)
        assert apps(workloads.load(f"{PHILLY},from=40m,to=2d")) == [(2, "job-2", 532.0, 66.0, 1, 2)]
        assert [a.line for a in workloads.load(f"{ALIBABA},from=50,to=60s").apps] == [3]

    def test_limit_scale_and_sample(self) -> None:
        assert [app.line for app in workloads.load(f"{PHILLY},limit=2").apps] == [3, 2]
        assert [app.at_s for app in workloads.load(f"{PHILLY},scale=2").apps] == [0.0, 1466.0, 118408.5]
        one = [[a.line for a in workloads.load(f"{PHILLY},sample=0.5", seed=seed).apps] for seed in (3, 3, 4, 5)]
        assert one[0] == one[1]
        assert any(lines != one[0] for lines in one[2:])

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ("from=2018-01-01", "no job is left: 3 rows are right but not asked for, 4 are skipped; the first, line 4"),
            ("from=2017-10-10,to=2017-10-09", "from=2017-10-10 is not before to=2017-10-09"),
            ("from=soon", "from: 'soon' is neither a date"),
            ("to=2017-13-01", "to: '2017-13-01' is neither a date"),
            ("sample=0", "sample: expected a number above 0, at most 1"),
            ("bounds=soft", "bounds: expected elastic, half or rigid"),
        ],
    )
    def test_what_can_t_be(self, options: str, says: str) -> None:
        assert says in refused(f"{PHILLY},{options}")

    def test_a_date_needs_a_trace_with_dates(self) -> None:
        assert "the trace has no dates; write from=5d" in refused(f"{ALIBABA},from=2023-01-01")

    def test_with_what_it_had_a_job_takes_as_long_as_it_did(self) -> None:
        for app in workloads.load(f"{PHILLY},speed=amdahl:0.9,bounds=rigid").apps:
            n = app.spec.n_min
            assert app.work / app.speed.rate((n,)) == pytest.approx({3: 2951.0, 2: 66.0, 8: 120.5}[app.line])


class TestFiles:
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_that_is_missing_empty_or_a_folder(self, kind: str, tmp_path: Path) -> None:
        options = f",{MAPPING}" if kind == "csv" else ""
        assert "No such file" in refused(f"{kind}:{tmp_path / 'missing'}{options}")
        (tmp_path / "empty").write_text("")
        assert refused(f"{kind}:{tmp_path / 'empty'}{options}")
        assert refused(f"{kind}:{tmp_path}{options}")

    def test_one_that_is_cut_off(self, tmp_path: Path) -> None:
        file = tmp_path / "log.swf.gz"
        file.write_bytes(gzip.compress((SAMPLES / "small.swf").read_bytes())[:-20])
        assert "cut off or damaged" in refused(f"swf:{file}")


FIELD = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1", "2.5", "1e400", "nan", "1_0", "٣", "2017-10-09 07:01:55", "2017-02-31", "x", '"']
    ),
    st.integers(-5, 2000).map(str),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6),
)
CSV_HEADERS = {
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster",
    "alibaba": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
    "csv": "id,created,runtime,gpus,cores,mem_mb,team,prio",
}
SOUND = {
    "philly": "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
    "alibaba": "pod-1,3152,5600,0,0,,BE,Succeeded,50,1000,50",
    "csv": "eval,90,60,1,0.5,512,vision,1",
    "swf": "1 0 10 100 4 -1 -1 4 200 -1 1 3 1 1 1 1 -1 -1",
}


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Rows of a format, of which some fields are anything, or are missing."""
    kind = draw(st.sampled_from(sorted(SOUND)))
    separator = " " if kind == "swf" else ","
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        fields = SOUND[kind].split(separator)
        for _ in range(draw(st.integers(0, 3))):
            fields[draw(st.integers(0, len(fields) - 1))] = draw(FIELD)
        rows.append(separator.join(fields[: draw(st.integers(1, len(fields) + 9))]))
    return kind, rows


@settings(max_examples=250)
@given(
    spoiled=spoiled(), strict=st.booleans(), options=st.sampled_from(["", ",bounds=half", ",limit=2", ",sample=0.5"])
)
def test_any_row_is_an_app_or_skipped_or_cut_and_nothing_else_is_raised(
    spoiled: tuple[str, list[str]], strict: bool, options: str
) -> None:
    kind, rows = spoiled
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("openb_pod_list_default.csv" if kind == "alibaba" else "rows")
        header = [CSV_HEADERS[kind]] if kind in CSV_HEADERS else []
        path.write_text("\n".join([*header, *rows]), encoding="utf-8")
        text = f"{kind}:{folder if kind == 'alibaba' else path}{f',{MAPPING}' if kind == 'csv' else ''}{options}"
        if kind == "alibaba":
            nodes_file = Path(folder) / "openb_node_list_all_node.csv"
            nodes_file.write_text((SAMPLES / "openb" / nodes_file.name).read_text())
        said = ""
        try:
            workload = workloads.load(text, strict=strict)
        except SimulationError as error:
            said = str(error)
    if said:
        assert said.isprintable()
        return
    comments = sum(kind == "swf" and row.lstrip().startswith(";") for row in rows)
    empty = sum(not (row.strip() if kind == "swf" else row) for row in rows)
    assert workload.rows == len(workload.apps) + len(workload.skipped) + workload.cut == len(rows) - comments - empty
    assert not (strict and any(one.broken for one in workload.skipped))
    assert len({app.spec.name for app in workload.apps}) == len(workload.apps)
    assert all(app.work > 0 and app.at_s >= 0 for app in workload.apps)
    assert [app.at_s for app in workload.apps] == sorted(app.at_s for app in workload.apps)


def test_a_trace_is_simulated_to_its_end() -> None:
    cluster = nodes.parse("gpu=8")
    workload = nodes.fitting(workloads.load(f"{PHILLY},bounds=rigid"), cluster)
    simulation = Simulation(Scenario(apps=workload.apps, nodes=cluster, policy="static"))
    ends: list[k.Event] = []
    simulation.observe(lambda state, record, event, folded: ends.extend(facts(event)))
    simulation.run()
    done = [fact.app.rpartition("-")[0] for fact in ends if isinstance(fact, k.AppCompleted)]
    assert sorted(done) == ["job-2", "job-3", "job-8"]


def facts(event: k.Event) -> list[k.Event]:
    return list(event.events) if isinstance(event, k.Round) else [event]
