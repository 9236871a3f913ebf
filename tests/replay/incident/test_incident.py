"""The folder of an incident: it names the causes, contains only what the log says, and is empty if anything goes wrong."""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.state import digest
from dorm.web.offline import page
from events import kinds as k
from events.archive.segments import open_archive
from events.errors import DormError
from events.quantities import SECOND
from replay.audit.audit import verify
from replay.incident import FIRST, LATEST, Happenings, write
from replay.moments import AtSequence, BeforeEnd
from replay.travel import state_at
from tests.errors import raises
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from replay.incident import Incident

SECRETS = ("alice", "digits-secret", "trainer-one", "rack-7", "PRIVATE_VALUE", "quarterly")
"""Names and texts of people, which no disguised file may hold."""


def incident_log() -> tuple[Story, int]:
    """alice changes the policy and drains a node; later an app grows, another fails, and a node is lost.  Also returns
    where the incident begins."""
    story = Story(nodes=0)
    for index in range(3):
        node, ports = f"rack-7{index}", (20_000 + 100 * index, 20_099 + 100 * index)
        story.say(
            k.NodeJoined(node=node, address="10.0.0.1", capacity={"cpu": 3000}, ports=ports, build="dorm 9.9"), node
        )
    story.say(k.PolicyChanged(policy="static", params={"count": 2}), "root")
    story.submit("digits-secret", n_max=4, user="trainer-one", env={"SETTING": "PRIVATE_VALUE"})
    story.settle()
    story.work()
    story.say(k.PolicyChanged(policy="dorm"), "alice")
    story.say(k.NodeDrainRequested(node="rack-72", reason="the quarterly check"), "alice")
    for _ in range(5):
        story.say(k.SealRequested(), "alice")
    begin = len(story.records)
    story.submit("second", n_max=2, user="trainer-one")
    story.settle()
    story.work()
    story.exit("second", 3)
    story.settle()
    story.conclude({"rack-71": story.now - 60 * SECOND})
    story.settle()
    return story, begin


def made(tmp_path: Path, *, disguised: bool = False) -> tuple[Path, Incident]:
    story, begin = incident_log()
    folder = tmp_path / "ticket"
    found = asyncio.run(
        write(log_of(story.records), folder, AtSequence(begin), before_s=3600, disguised=disguised, page=page)
    )
    return folder, found


def test_the_folder_names_earlier_changes_and_affected_users(tmp_path: Path) -> None:
    folder, found = made(tmp_path)
    _, begin = incident_log()
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "diff.md", "incident.json", "log.dorm", "stories.md", "timeline.html",
    ]  # fmt: skip
    before = {one.sort: [h.text for h in one.kept] for one in found.changed_before}
    assert before["settings"] == ["root set policy=static, count=2", "alice set policy=dorm"]
    assert before["operators"] == ["alice started draining rack-72: the quarterly check"]
    during = {one.sort: [h.text for h in one.kept] for one in found.happened}
    assert during["nodes"][0].startswith("rack-71 was lost")
    assert any("slot 0 of second" in text and "exit code 3" in text for text in during["failures"])
    assert {"digits-secret", "second", "rack-71"} <= {one.name for one in found.stories}
    readme = (folder / "README.md").read_text()
    assert readme.index("What changed before") < readme.index("`alice set policy=dorm`") < readme.index("What happened")
    assert "`dorm 9.9`" in readme
    stories = (folder / "stories.md").read_text()
    assert "alice set policy=dorm" in stories.split("## app `digits-secret`")[1].split("## ")[0]
    assert msgspec.json.decode((folder / "incident.json").read_bytes()) == msgspec.to_builtins(found)
    assert found.split == begin
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "timeline.html").read_text().startswith("<!doctype html>")


async def test_its_log_gives_the_same_state_and_can_be_audited(tmp_path: Path) -> None:
    story, begin = incident_log()
    folder = tmp_path / "ticket"
    await write(log_of(story.records), folder, AtSequence(begin), before_s=0.35, disguised=False, page=page)
    part = await open_archive(folder / "log.dorm")
    try:
        assert 0 < await part.start() < begin
        assert digest(await state_at(part)) == digest(story.state)
        assert (await verify(part, jobs=1)).divergence is None
    finally:
        await part.close()


def test_an_anonymized_incident_contains_no_names_and_no_text_by_people(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain, _ = made(tmp_path / "a")
    folder, found = made(tmp_path / "b", disguised=True)
    told = "".join(path.read_text(errors="replace") for path in plain.glob("*.md"))
    assert all(name in told for name in SECRETS if name != "PRIVATE_VALUE"), "the names are there to be found"
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in plain.iterdir())
    for path in folder.iterdir():
        content = path.read_bytes()
        if path.suffix == ".html":
            data = re.search(rb'id="recording">([^<]*)<', content)
            assert data is not None
            content = gzip.decompress(base64.b64decode(data[1]))
            assert b"static" in content, "it holds what happened"
        assert not [name for name in SECRETS if name.encode() in content], path.name
    assert found.disguised
    assert {one.sort for one in found.changed_before} >= {"settings", "operators"}
    assert "pseudonyms" in (folder / "README.md").read_text()


async def test_bad_questions_leave_no_folder(tmp_path: Path) -> None:
    story, begin = incident_log()
    log, end = log_of(story.records), len(story.records)
    there = tmp_path / "there"
    there.mkdir()

    async def ask(since: object, until: object = None, folder: Path = tmp_path / "new") -> None:
        await write(log, folder, since, until, before_s=60, disguised=False, page=page)  # type: ignore[arg-type]

    with raises(DormError, "file.exists", "there"):
        await ask(AtSequence(begin), folder=there)
    with raises(DormError, "export.not_written"):
        await ask(AtSequence(begin), folder=tmp_path / "none" / "new")
    with raises(DormError, "moment.end_before_start"):
        await ask(AtSequence(begin), AtSequence(begin - 1))
    with raises(DormError, "incident.empty_span"):
        await ask(AtSequence(end))
    with raises(DormError, "incident.empty_span"):
        await ask(BeforeEnd(0))
    with raises(DormError, "moment.after_end"):
        await ask(AtSequence(end + 1))
    with raises(DormError, "log.empty"):
        await write(log_of([]), tmp_path / "new", BeforeEnd(1), before_s=0, disguised=False, page=page)

    def broken(_recording: bytes, _title: str) -> str:
        raise OSError(28, "No space left on device")

    with raises(DormError, "export.not_written", "No space left"):
        await write(log, tmp_path / "new", AtSequence(begin), before_s=60, disguised=False, page=broken)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


async def test_it_reaches_back_to_the_start_of_the_log(tmp_path: Path) -> None:
    story, _ = incident_log()
    found = await write(
        log_of(story.records), tmp_path / "all", BeforeEnd(3600 * SECOND), before_s=60, disguised=False, page=page
    )
    assert (found.first, found.split, found.last) == (0, 0, len(story.records))
    assert found.changed_before == []
    assert {one.sort for one in found.happened} >= {
        "settings",
        "operators",
        "masters",
        "submissions",
        "nodes",
        "failures",
    }


def test_the_first_and_the_latest_of_many_are_kept() -> None:
    from dorm.core.evolve import evolve
    from dorm.core.state import State

    story, state = Story(nodes=1), State()
    happenings = Happenings(state)
    for index in range(200):
        story.say(k.AppSubmitted(spec={"name": f"a-{index}"}), "ann")
    for record in story.records:
        folded = evolve(state, record)
        happenings.see(state, record, folded)
    (submissions,) = [one for one in happenings.all() if one.sort == "submissions"]
    assert [len(submissions.kept), submissions.omitted] == [FIRST + LATEST, 200 - FIRST - LATEST]
    assert submissions.kept[0].text == "ann submitted a-0"
    assert submissions.kept[-1].text == "ann submitted a-199"


@pytest.mark.parametrize("text", ["`x` <script>", "a\nb\x1b[31m", "[l](http://e) \u202e", ""])
def test_texts_of_others_are_code_spans_of_one_line(text: str) -> None:
    from replay.incident import plain

    shown = plain(text)
    assert shown[0] == shown[-1] == "`"
    assert "`" not in shown[1:-1]
    assert shown.isprintable()


def test_a_suspect_node_and_who_trusted_it_are_named() -> None:
    from dorm.core.evolve import evolve
    from dorm.core.state import State
    from tests.core.suspect_node import BAD, suspect

    bench, state = suspect(), State()
    bench.add(k.NodeTrustRequested(node=BAD, by="ops", reason="a new disk"), "ops")
    happenings = Happenings(state)
    for record in bench.records:
        happenings.see(state, record, evolve(state, record))
    told = {one.sort: [each.text for each in one.kept] for one in happenings.all()}
    assert told["nodes"][-1].startswith("bad is suspect, so it takes nothing new: one failed (one: no such file), ")
    assert told["operators"][-1] == "ops had bad trusted again: a new disk"
    assert happenings.nodes.most_common(1)[0][0] == BAD
