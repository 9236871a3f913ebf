"""Traces become workloads, and errors name the row."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm_lab.workloads import by_name as workloads
from dorm_lab.workloads import nodes
from events import kinds as k
from replay.simulator import SimulationError
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation
from tests.tries import tries

if TYPE_CHECKING:
    from replay.simulator.workload import Workload

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
    return {one.line: one.code for one in workload.skipped}


def refused(text: str, *, strict: bool = False, at: str = "") -> str:
    """Return the code of the error, which must start with this place."""
    with pytest.raises(SimulationError) as caught:
        workloads.load(text, strict=strict)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(at)
    return caught.value.code


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

    def test_broken_rows_are_named_with_their_line(self) -> None:
        workload = workloads.load(PHILLY)
        assert why(workload) == {
            4: "trace.value.out_of_range",
            5: "trace.value.malformed",
            6: "trace.row.malformed",
            7: "trace.value.malformed",
        }
        assert (workload.rows, workload.cut, workload.unsorted) == (7, 0, (3,))

    def test_strict_refuses_the_first_of_them(self) -> None:
        assert refused(PHILLY, strict=True, at=f"{SAMPLES / 'philly.csv'}:4: ") == "trace.value.out_of_range"

    def test_strict_accepts_philly_rows_in_any_order(self, tmp_path: Path) -> None:
        file = tmp_path / "sound.csv"
        file.write_text("".join((SAMPLES / "philly.csv").read_text().splitlines(keepends=True)[:3]))
        assert len(workloads.load(f"philly:{file}", strict=True).apps) == 2

    def test_another_header_is_another_format(self, tmp_path: Path) -> None:
        file = tmp_path / "other.csv"
        file.write_text("timestamp,duration,num_gpus,vc\n2017-10-09 07:01:55,66.0,1,a\n")
        assert len(workloads.load(f"philly:{file}").apps) == 1
        assert refused(f"philly:{file}", strict=True) == "trace.column.unknown"
        file.write_text("time,duration,num_gpus\n")
        assert refused(f"philly:{file}") == "trace.column.missing"

    def test_a_file_without_line_ends_does_not_fill_the_memory(self) -> None:
        assert refused("philly:/dev/zero", at="/dev/zero:1: ") == "trace.line.too_long"

    def test_a_trace_has_no_nodes_and_cores_per_gpu_are_an_option(self) -> None:
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

    def test_omitted_rows(self) -> None:
        workload = workloads.load(ALIBABA)
        assert why(workload) == {
            5: "spec.n_min.no_room",
            6: "trace.job.never_ran",
            7: "trace.times.not_ascending",
        }
        assert [one.broken for one in workload.skipped] == [True, False, True]

    def test_strict_refuses_broken_rows_but_not_jobs_that_never_ran(self, tmp_path: Path) -> None:
        for name in ("openb_node_list_all_node.csv", "openb_pod_list_default.csv"):
            (tmp_path / name).write_text((SAMPLES / "openb" / name).read_text())
        pods = tmp_path / "openb_pod_list_default.csv"
        assert refused(f"alibaba:{tmp_path}", strict=True, at=f"{pods}:7: ") == "trace.times.not_ascending"
        lines = pods.read_text().splitlines(keepends=True)
        pods.write_text("".join(lines[:6]))
        assert (
            refused(f"alibaba:{tmp_path}", strict=True, at="workload alibaba, line 5: pod-3 ") == "spec.n_min.no_room"
        )
        pods.write_text("".join(lines[:4] + lines[5:6]))
        assert len(workloads.load(f"alibaba:{tmp_path}", strict=True).apps) == 3

    def test_a_broken_node_is_always_refused(self, tmp_path: Path) -> None:
        nodes_file, pods = tmp_path / "openb_node_list_all_node.csv", tmp_path / "openb_pod_list_default.csv"
        pods.write_text((SAMPLES / "openb" / pods.name).read_text())
        for row, code in [
            ("n,1000,x,0,", "trace.value.malformed"),
            (",1,1,0,", "trace.name.missing"),
            ("n,1,1,0,\nn,1,1,0,", "trace.name.given_twice"),
        ]:
            nodes_file.write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{row}\n")
            assert refused(f"alibaba:{tmp_path}", at=str(nodes_file)) == code


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
            7: "trace.job.never_ran",
            10: "trace.value.missing",
            11: "spec.n_min.no_room",
            12: "trace.row.malformed",
            13: "trace.value.out_of_range",
            14: "trace.job.partial",
            15: "trace.value.malformed",
            16: "trace.job.too_short",
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
        assert refused(f"swf:{file}", strict=True, at=f"{file}:3: ") == "trace.not_in_order"


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

    def test_broken_rows(self) -> None:
        assert why(workloads.load(CSV)) == {
            5: "trace.value.malformed",
            6: "trace.row.malformed",
            7: "trace.value.other_clock",
            8: "spec.weight.out_of_range",
        }

    @pytest.mark.parametrize(
        ("mapping", "code"),
        [
            ("duration=runtime,cpu=1", "workload.option.missing"),
            ("submit=created,duration=runtime", "workload.option.missing"),
            ("submit=when,duration=runtime,cpu=1", "trace.column.missing"),
            ("submit=created,duration=runtime,cpu=coers", "trace.column.missing"),
            ("submit=created,duration=runtime,cpu=1,colour=red", "workload.option.unknown"),
        ],
    )
    def test_a_mapping_that_does_not_fit(self, mapping: str, code: str) -> None:
        assert refused(f"csv:{SAMPLES / 'jobs.csv'},delimiter=semicolon,{mapping}") == code

    def test_bounds_of_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "own.csv"
        file.write_text("at,s,low,high\n2017-10-01,5,2,6\n2017-10-02T00:00:00+02:00,5,3,2\n2017-10-03,5,1,1\n")
        workload = workloads.load(f"csv:{file},submit=at,duration=s,n_min=low,n_max=high,cpu=1")
        assert [(app.at_s, app.spec.n_min, app.spec.n_max) for app in workload.apps] == [(0, 2, 6), (2 * 86400, 1, 1)]
        assert why(workload) == {3: "spec.n_min.above_n_max"}


class TestCuts:
    def test_a_window_keeps_the_time_from_its_start(self) -> None:
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
        ("options", "code"),
        [
            ("from=2018-01-01", "trace.no_jobs"),
            ("from=2017-10-10,to=2017-10-09", "workload.window.empty"),
            ("from=soon", "workload.window.malformed"),
            ("to=2017-13-01", "workload.window.malformed"),
            ("sample=0", "workload.option.out_of_range"),
            ("bounds=soft", "workload.option.malformed"),
        ],
    )
    def test_impossible_requests(self, options: str, code: str) -> None:
        assert refused(f"{PHILLY},{options}") == code

    def test_a_date_needs_a_trace_with_dates(self) -> None:
        assert refused(f"{ALIBABA},from=2023-01-01") == "workload.window.no_dates"

    def test_with_its_original_containers_a_job_takes_its_original_time(self) -> None:
        for app in workloads.load(f"{PHILLY},speed=amdahl:0.9,bounds=rigid").apps:
            n = app.spec.n_min
            assert app.work / app.speed.rate((n,)) == pytest.approx({3: 2951.0, 2: 66.0, 8: 120.5}[app.line])


class TestFiles:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_missing_file_an_empty_one_and_a_folder(self, kind: str, tmp_path: Path) -> None:
        options = f",{MAPPING}" if kind == "csv" else ""
        assert refused(f"{kind}:{tmp_path / 'missing'}{options}") == "system.enoent"
        (tmp_path / "empty").write_text("")
        empty = "trace.no_jobs" if kind == "swf" else "system.enotdir" if kind == "alibaba" else "trace.empty"
        assert refused(f"{kind}:{tmp_path / 'empty'}{options}") == empty
        assert refused(f"{kind}:{tmp_path}{options}") == ("system.enoent" if kind == "alibaba" else "system.eisdir")

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        file = tmp_path / "log.swf.gz"
        file.write_bytes(gzip.compress((SAMPLES / "small.swf").read_bytes())[:-20])
        assert refused(f"swf:{file}") == "trace.damaged"


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


@settings(max_examples=tries(31, 250))
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
    simulation.observe(lambda state, record, folded: ends.extend(facts(folded.event)))
    simulation.run()
    done = [fact.app.rpartition("-")[0] for fact in ends if isinstance(fact, k.AppCompleted)]
    assert sorted(done) == ["job-2", "job-3", "job-8"]


def facts(event: k.Event) -> list[k.Event]:
    return list(event.events) if isinstance(event, k.Round) else [event]
