"""Tables on narrow and wide terminals, and in a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dorm.cli import output, tables
from dorm.cli.output import Format, ago, counted, show
from dorm.core.query.views import app_rows, describe, node_rows
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from collections.abc import Callable

NOTE = "no node has 0.5 cores free (closest: node-1 with 0 cores); 3 containers short of n_min 3"
ROWS = [
    {"name": "a-name-of-some-length", "phase": "waiting", "note": NOTE},
    {"name": "b", "phase": "running", "note": ""},
]
COLUMNS = [("NAME", "name"), ("PHASE", "phase")]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    def show_on(width: int, chosen: Format, *, terminal: bool = True) -> list[str]:
        screen = io.StringIO()
        monkeypatch.setattr(
            output,
            "console",
            Console(
                file=screen, width=width, force_terminal=terminal, color_system=None, highlight=False, soft_wrap=True
            ),
        )
        show(ROWS, COLUMNS, chosen, note=("NOTE", "note"))
        return [line.rstrip() for line in screen.getvalue().splitlines()]

    return show_on


def test_a_note_is_cut_to_the_terminal(printed: Callable[..., list[str]]) -> None:
    heading, first, second = printed(80, Format.table)
    assert heading.split() == ["NAME", "PHASE", "NOTE"]
    assert first.startswith("a-name-of-some-length  waiting  no node has 0.5 cores free")
    assert first.endswith("…")
    assert len(first) <= 80
    assert second == "b                      running"


def test_notes_move_below_the_table_if_it_is_too_wide(printed: Callable[..., list[str]]) -> None:
    lines = printed(50, Format.table)
    assert lines[0].split() == ["NAME", "PHASE"]
    assert max(map(len, lines)) <= 50
    assert " ".join(lines[4:]) == f"a-name-of-some-length: {NOTE}"


def test_a_pipe_and_wide_output_show_the_whole_note(printed: Callable[..., list[str]]) -> None:
    for lines in (printed(50, Format.table, terminal=False), printed(50, Format.wide)):
        assert len(lines) == 3
        assert lines[1].endswith(NOTE)


def test_lines_end_with_their_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    page = on_paper(monkeypatch)
    show(ROWS, COLUMNS, Format.wide, note=("NOTE", "note"))
    assert [len(line) - len(line.rstrip()) for line in page.getvalue().splitlines()] == [0, 0, 0]
    assert page.getvalue().splitlines()[2].split() == ["b", "running"]


def on_paper(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed from here on."""
    page = io.StringIO()
    for module in (output, tables):
        monkeypatch.setattr(module, "console", Console(file=page, width=200, color_system=None, highlight=False))
    return page


def test_a_description_shows_the_requirements_of_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.add(joined("one", 8, labels={"zone": "a"}))
    bench.submit("plain")
    bench.submit("choosy", require='zone == "a"\n  or has spot\n', placement="pack", gang=2, steps=90)
    bench.decide()
    page = on_paper(monkeypatch)
    tables.show_app(describe(bench.app("choosy"), bench.now))
    lines = [line.split(maxsplit=1) for line in page.getvalue().splitlines()]
    assert ["require", 'zone == "a"   or has spot'] in lines
    assert ["placement", "pack"] in lines
    assert ["gang", "2, each whole on one node"] in lines
    assert ["progress", "step 0 of 90"] in lines
    assert ["served", "0.00 container-hours"] in lines
    page = on_paper(monkeypatch)
    document = describe(bench.app("plain"), bench.now)
    tables.show_app(document)
    assert (document["require"], document["placement"], document["gang"]) == ("", "", 1)
    assert not {"require", "placement", "gang"} & {line.split()[0] for line in page.getvalue().splitlines()}


def test_wide_nodes_show_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.add(joined("one", 8, labels={"zone": "a", "gpu_type": "h100"}))
    page = on_paper(monkeypatch)
    tables.show_nodes(node_rows(bench.state), Format.wide)
    heading, line = page.getvalue().splitlines()
    assert heading.split()[-2:] == ["LABELS", "CHECKPOINTS"]
    assert "gpu_type=h100, zone=a" in line


def test_counts_and_ages_in_words() -> None:
    assert (counted(1, "app"), counted(0, "app")) == ("1 app", "0 apps")
    assert [ago(seconds) for seconds in (0, 119, 120, 7200, 200_000)] == ["0s", "119s", "2m", "2h", "2d"]


def test_a_description_shows_batch_plan_and_a_failing_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(one=8)
    bench.now -= bench.now % (600 * SECOND)
    bench.add(k.PolicyChanged(policy="oasis"))
    accepts = {"initial": 64, "least": 32, "most": 4096, "per_container": 512}
    bench.submit("app", batch=accepts, work={"mini_batch": "6s", "chunks": 100})
    bench.settle()
    bench.say(
        k.PolicyFailed(policy="oasis", policy_version=1, code="policy.raised", reason="KeyError:\n 'x'", digest="")
    )
    page = on_paper(monkeypatch)
    tables.show_app(describe(bench.app("app"), bench.now, bench.state))
    lines = dict(line.split(maxsplit=1) for line in page.getvalue().splitlines() if len(line.split(maxsplit=1)) == 2)
    assert lines["batch"] == "64 of 32 to 4096: it has reported no gradient noise yet, so it has the initial 64"
    assert lines["plan"].startswith("until ")
    assert "worth " in lines["plan"]
    assert lines["policy"] == (
        "oasis gives no usable answer, so all apps keep what they have: KeyError: 'x' (policy.raised)"
    )
    page = on_paper(monkeypatch)
    tables.show_app(describe(bench.app("app"), bench.now))
    assert "policy.raised" not in page.getvalue(), "an app alone does not know it"


def test_missing_progress_is_not_shown_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(n1=4)
    bench.running("quiet")
    bench.running("works")
    bench.add(k.AppProgressed(app=bench.app("works").id, generation=1, step=0, loss=2.5))
    page = on_paper(monkeypatch)
    tables.show_apps(app_rows(bench.state, bench.now), Format.table)
    steps = {line.split()[0]: line.split()[4:6] for line in page.getvalue().splitlines()}
    assert (steps["quiet"], steps["works"]) == (["-", "-"], ["0", "2.5"])
    for name, wanted in (("quiet", "none reported"), ("works", "step 0, loss 2.5")):
        page = on_paper(monkeypatch)
        tables.show_app(describe(bench.app(name), bench.now))
        lines = dict(
            line.split(maxsplit=1) for line in page.getvalue().splitlines() if len(line.split(maxsplit=1)) == 2
        )
        assert lines["progress"].startswith(wanted)


def test_the_failure_that_ended_an_app_is_one_of_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(n1=4)
    bench.running("app", retries={"limit": 0})
    bench.exited("app", code=1)
    bench.settle()
    assert bench.app("app").ended == "failed"
    page = on_paper(monkeypatch)
    tables.show_app(describe(bench.app("app"), bench.now))
    assert ["failures", "1"] in [line.split() for line in page.getvalue().splitlines()]
