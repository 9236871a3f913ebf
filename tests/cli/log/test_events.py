"""`dorm events`: its output for files and for a cluster, and resuming after an interruption."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dorm.cli.events import in_words
from dorm.cli.main import main
from dorm.cli.output import console
from dorm.client.client import Client
from events.cloudevents import cloud_event
from events.kinds import AppCancelRequested
from events.nats.connection import Connection
from replay.export.export import export
from tests.core.query.test_concerns import log, naive
from tests.e2e.commands import dorm as dorm_process
from tests.e2e.commands import running, until_printed
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

    Dorm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dorm:
    """Runs `dorm events` in this process on a file with the log "users"; exit code, standard output, standard error."""
    file = tmp_path / "log.dorm"
    asyncio.run(export(log_of(log("users")), file))
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(console, "width", 200)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", "events", "--file", str(file), *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def positions(printed: tuple[int, str, str]) -> list[str]:
    """Of lines of JSON."""
    code, out, err = printed
    assert code == 0
    assert not (out and err)
    return [json.loads(line).get("position") for line in out.splitlines()]


def passing(**wanted: tuple[str, ...]) -> list[str]:
    return [str(one.position) for one in naive("users").passing(**wanted)]


def test_each_format_has_every_event_of_a_file(events: Dorm) -> None:
    found = naive("users").passing()
    assert positions(events("-o", "json")) == [str(one.position) for one in found]
    code, out, _ = events("-o", "cloudevents")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        json.loads(json.dumps(cloud_event(one))) for one in found
    ]
    code, out, _ = events()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [str(one.position) for one in found]
    assert [line.split()[4] for line in out.splitlines()] == [type(one.event).__name__ for one in found]
    assert "\x1b" not in out, "a pipe gets no colours"


def test_the_common_output_format_applies_to_events(events: Dorm, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = events("-o", "json")
    monkeypatch.setenv("DORM_OUTPUT", "json")
    assert events() == whole
    assert events("-o", "cloudevents") != whole, "what is asked for has the last word"
    monkeypatch.setenv("DORM_OUTPUT", "yaml")
    documents = list(yaml.safe_load_all(events()[1]))
    assert documents == [json.loads(line) for line in whole[1].splitlines()]
    monkeypatch.setenv("DORM_OUTPUT", "wide")
    assert [line.split()[0] for line in events()[1].splitlines()] == [one["position"] for one in documents]


def test_long_values_are_cut_unless_all_is_asked_for() -> None:
    event = AppCancelRequested(app="x", reason="why " * 100)
    assert in_words(event).endswith("...")
    assert in_words(event, whole=True).strip().endswith("why")


def test_filters_and_bounds(events: Dorm) -> None:
    everything = passing()
    assert positions(events("--user", "ann", "-o", "json")) == passing(users=("ann",))
    assert positions(events("--node", "n1", "--kind", "Resized", "-o", "json")) == passing(
        nodes=("n1",), kinds=("Resized",)
    )
    assert positions(events("--app", "anns", "--app", "same", "-o", "json")) == passing(apps=("anns", "same"))
    middle = everything[len(everything) // 2]
    rest = everything[everything.index(middle) + 1 :]
    assert positions(events("--after", middle, "-o", "json")) == rest
    assert positions(events("--after", middle, "--tail", 5, "-o", "json")) == rest[-5:]
    assert positions(events("--after", everything[-2], "--tail", 5, "-o", "json")) == everything[-1:]
    assert positions(events("--tail", 3, "--user", "bob", "-o", "json")) == passing(users=("bob",))[-3:]
    assert positions(events("--tail", 0, "-o", "json")) == []
    assert positions(events("--since", 10, "--until", 20, "-o", "json")) == [
        one for one in everything if 10 <= int(one.split(".")[0]) <= 20
    ]
    last = naive("users").passing()[-1].time
    recent = [str(one.position) for one in naive("users").passing() if one.time >= last - 10**9]
    assert positions(events("--since", "-1s", "-o", "json")) == recent
    older = [str(one.position) for one in naive("users").passing() if one.time <= last - 10**9]
    assert positions(events("--until", "-1s", "-o", "json")) == older


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--app", "typo"], "nothing in records 1 to 52 matches --app typo"),
        (["--user", "zoe", "--kind", "NodeLost", "--tail", 3], "matches --user zoe --kind NodeLost"),
        (["--app", "anns", "--since", 50, "--until", 51], "nothing in records 50 to 51 matches --app anns"),
        (["--node", "n\x1b9"], r"matches --node n\x1b9"),
        (["--until", "2020-01-01"], "there is no record in that time"),
        (["--since", 99], "there is no record in that time"),
        (["--tail", 0, "--app", "typo"], ""),
        (["--after", 52], ""),
    ],
)
def test_an_empty_result_is_reported(events: Dorm, words: list[object], said: str) -> None:
    code, out, err = events(*words)
    assert (code, out) == (0, "")
    assert said in err
    assert len(err.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("words", "error", "named"),
    [
        (["--kind", "AppSubmited"], "tail.kind.unknown", "did you mean AppSubmitted"),
        (["--after", "1.2.3"], "position.malformed", "'1.2.3'"),
        (["--since", "yesterday"], "moment.", "'yesterday'"),
        (["--after", "1", "--since", "-1s"], "usage.conflict", "--since"),
        (["-f"], "usage.conflict", "--file"),
        (["-f", "--until", "5"], "usage.conflict", "--until"),
        (["-o", "toml"], "usage.bad_parameter", "'toml'"),
    ],
)
def test_wrong_usage(events: Dorm, words: list[str], error: str, named: str) -> None:
    code, out, err = events(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert f" [{error}" in err
    assert named in err
    assert len(err.splitlines()) == 1


def test_a_position_beyond_the_end(events: Dorm) -> None:
    code, out, err = events("--after", 10**6)
    assert (code, out) == (1, "")
    assert err.endswith(" [log.truncated]\n")
    assert len(err.splitlines()) == 1


def test_kinds_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_DORM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "dorm events --kind AppC")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setattr(sys, "argv", ["dorm"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == ["AppCancelRequested", "AppCancelled", "AppCheckpointed", "AppCompleted"]


def test_foreign_text_moves_no_cursor() -> None:
    assert in_words(AppCancelRequested(app="x", reason="a\x1b[2Jb\nc")) == r"app=x reason=a\x1b[2Jb\nc"


@pytest.mark.nats
@pytest.mark.timeout(60)
async def test_ctrl_c_shows_how_to_continue(nats_server: NatsServer, tmp_path: Path) -> None:
    cluster = "ctrlc"
    connection = await Connection.open(nats_server.url, cluster, create=True)
    records = log("users")
    expected = [str(one.position) for one in naive("users").passing(users=("ann",))]

    async def store(some: list[Any]) -> None:
        for record in some:
            await connection.log.append(record.subject.replace(".test.", f".{cluster}."), record.body)

    await store(records[:30])
    words = ["--url", nats_server.url, "--cluster", cluster, "--user", "ann", "-o", "json"]
    before = [one for one in expected if int(one.split(".")[0]) <= 30]
    out = tmp_path / "out"
    async with running(tmp_path, out, "events", "-f", *words) as following:
        await until_printed(out, f'"{before[-1]}"', following)
        following.send_signal(signal.SIGINT)
        assert await following.wait() == 130
    *lines, last = out.read_text().splitlines()
    assert [json.loads(line)["position"] for line in lines] == before
    await store(records[30:])
    position = last.removeprefix("ended early; to continue from here: --after ")
    code, rest, err = await dorm_process(tmp_path, "events", "--after", position, *words)
    assert (code, err) == (0, "")
    assert [json.loads(line)["position"] for line in rest.splitlines()] == expected[len(before) :]
    await connection.close()
    client = await Client.open(nats_server.url, cluster)
    async with client:
        found = [str(one.position) async for one in client.events(users=["ann"], follow=False)]
    assert found == expected


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_times_are_in_utc_wherever_they_are_read_and_can_be_pasted(
    events: Dorm, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        every = events()[1].splitlines()
        date, clock, name = every[-1].split()[1:4]
        assert name == "UTC"
        same = [line for line in every if f"{date} {clock} UTC" in line]
        for pasted in (f"{date} {clock} UTC", f"{date}T{clock}Z", f"{date}T{clock}"):
            assert events("--since", pasted)[1].splitlines() == same
        code, out, err = events("--since", clock)
        assert (code, out, "[moment.no_date]" in err, err.count("\n")) == (2, "", True, 1)
        code, out, err = events("--since", f"{date} {clock} PST")
        assert (code, out, "[moment.zone]" in err) == (2, "", True)
        code, out, err = events("--since", "2999-01-01T00:00")
        assert (code, out, "[moment.no_zone]" in err) == (2, "", True)
    finally:
        monkeypatch.undo()
        time.tzset()
