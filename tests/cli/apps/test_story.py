"""`dorm story`, and the story in `dorm explain`: output and exit codes, for files and for a NATS server."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from dorm.bench.demo_log import demo_log
from events import kinds as k
from events.nats.connection import Connection
from replay.export.export import export
from tests.core.records import Bench
from tests.e2e.commands import done
from tests.replay.made_log import log_of, two_apps

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.records import Record
    from tests.cli.conftest import Dorm
    from tests.lab.machines.nats_server import NatsServer


def saved(records: list[Record], path: Path) -> Path:
    asyncio.run(export(log_of(records), path))
    return path


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return saved(two_apps().records, tmp_path / "log.dorm")


def test_the_story_of_an_app(here: Dorm, log_file: Path) -> None:
    code, out, err = here("story", "one", "--file", log_file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("one  one-")
    # Its one failure is open, and costs no retry.
    assert lines[1] == "it waited 0.8 s, was paused 3.9 s, ran 1.1 s, 3 generations, 2 adjustments, 2 steps lost"
    assert lines[3] == "2023-11-14 UTC"
    assert lines[4] == "22:13:20.300     4  submitted by someone"
    # A cause that is a chapter is a place, any other has its words.
    assert "  starts with 4 containers on n0 (3), n1 (1), after waiting 0.1 s  ← 4" in out
    assert "19.0  shrunk from 4 to 2 containers: gives up n0 (1), n1 (1), keeps n0 (2)\n" in out
    assert "in its room, by the same decision, three started on n0 (1) and two started on n1 (3)\n" in out
    assert "  ← 13 two was submitted by someone\n" in out
    assert all(line == line.rstrip() for line in lines)
    code, out, _ = here("story", "one", "--file", log_file, "--last", 2)
    assert (code, len([line for line in out.splitlines() if line.startswith("22:")])) == (0, 2)
    assert "earlier chapters" in out


def test_for_programs(here: Dorm, log_file: Path) -> None:
    code, out, _ = here("story", "two", "--file", log_file, "-o", "json")
    story = json.loads(out)
    assert code == 0
    assert (story["name"], story["kind"]) == ("two", "app")
    shown = {chapter["what"]: chapter for chapter in story["chapters"]}
    assert shown["started"]["partition"] == {"n1": 3}
    assert shown["started"]["changed"]["room_from"][0]["name"] == "one"
    assert shown["accepted"]["causes"] == [{"position": "13", "text": "two was submitted by someone"}]
    assert shown["completed"]["totals"] == story["totals"]
    code, out, _ = here("story", "two", "--file", log_file, "-o", "yaml")
    assert yaml.safe_load(out) == story


def test_the_story_of_a_node(here: Dorm, tmp_path: Path) -> None:
    path = saved(demo_log(), tmp_path / "demo.dorm")
    code, out, err = here("story", "node-2", "--file", path)
    assert (code, err) == (0, "")
    assert out.startswith("node-2\nup ")
    assert "5 containers of 3 apps started; 0 may run now" in out
    assert "cpu     ▄" in out
    assert "peak 100%" in out
    assert "decided: digits-logistic gets 1" in out
    code, out, _ = here("story", "node-2", "--file", path, "--since", 100, "--at", 150, "-o", "json")
    story = json.loads(out)
    assert (code, story["kind"], story["seq"], story["chapters"][0]["what"]) == (0, "node", 150, "known")
    assert story["totals"]["running"] > 0


def test_explain_has_the_story(here: Dorm, log_file: Path) -> None:
    code, out, err = here("explain", "two", "--file", log_file)
    assert (code, err) == (0, "")
    assert "two completed at " in out
    assert "\n2023-11-14 UTC\n" in out
    assert "submitted by someone" in out
    brief = here("explain", "two", "--file", log_file, "--brief")[1]
    assert out.startswith(brief)
    assert "submitted by someone" not in brief
    document = json.loads(here("explain", "two", "--file", log_file, "-o", "json")[1])
    assert document["phase"] == "completed"
    assert document["story"] == json.loads(here("story", "two", "--file", log_file, "-o", "json")[1])["chapters"]
    assert "story" not in json.loads(here("explain", "two", "--file", log_file, "--brief", "-o", "json")[1])


def test_explain_of_an_app_that_has_left_the_state_has_its_story(here: Dorm, tmp_path: Path) -> None:
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(retention_s=1.0))
    bench.running("app", n_max=1)
    bench.exited("app")
    bench.decide()
    bench.wait(10)
    bench.submit("other")
    bench.settle()
    path = saved(bench.records, tmp_path / "log.dorm")
    code, out, _ = here("explain", "app", "--file", path)
    assert code == 0
    assert "Ended apps are not kept for so long" in " ".join(out.split())
    assert "starts with 1 container on n1 (1)" in out
    assert "it waited 0.0 s" in here("story", "app", "--file", path)[1]


def test_strangers_words_move_no_cursor(here: Dorm, tmp_path: Path) -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1, retries={"limit": 0})
    bench.exited("app", 0, 1, message="[bold]a\x1b[2J\nb")
    bench.settle()
    out = here("story", "app", "--file", saved(bench.records, tmp_path / "log.dorm"))[1]
    assert "\x1b" not in out
    assert r"exit code 1: [bold]a\x1b[2J b" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["story", "nobody"], 1, "[name.not_found]"),
        (["story", "twoo"], 1, "did you mean two?"),
        (["story", "one", "--node"], 1, "[node.not_found]"),
        (["story", "n1", "--since", "40", "--at", "20"], 1, "[moment.end_before_start]"),
        (["story", "one", "--at", "yesterday"], 2, "[moment.malformed]"),
        (["story", "one", "--at", "99"], 1, "[moment.after_end]"),
        (["story"], 2, "APP|NODE"),
        (["explain", "twoo"], 1, "did you mean two?"),
    ],
)
def test_mistakes_get_one_line(here: Dorm, log_file: Path, words: list[str], code: int, message: str) -> None:
    status, out, err = here(*words, "--file", log_file)
    assert (status, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.nats
async def test_a_story_is_read_from_a_log_on_a_server(nats_server: NatsServer, tmp_path: Path) -> None:
    """The same chapters as of a file; only log times are the server's."""
    name = f"story-{secrets.token_hex(4)}"
    records = two_apps().records
    connection = await Connection.open(nats_server.url, name, create=True)
    try:
        for record in records:
            subject = record.subject.replace(".story.", f".{name}.")
            await connection.log.append(subject, record.body, msg_id=record.msg_id)
    finally:
        await connection.close()
    where = ["--url", nats_server.url, "--cluster", name]
    path = tmp_path / "log.dorm"
    await export(
        log_of([msgspec.structs.replace(r, subject=r.subject.replace(".story.", f".{name}.")) for r in records]), path
    )
    live = json.loads(await done(tmp_path, "story", "two", *where, "-o", "json"))
    filed = json.loads(await done(tmp_path, "story", "two", "--file", str(path), "-o", "json"))
    assert live["id"] == filed["id"]
    for what in ("position", "what"):
        assert [chapter[what] for chapter in live["chapters"]] == [chapter[what] for chapter in filed["chapters"]]
    node = await done(tmp_path, "story", "n1", *where, "--at", "40")
    assert "3 containers of two (generation 1) run" in node
