"""`dorm replay page` and `dorm replay open` as people use them."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from replay.export.export import export
from tests.e2e.commands import dorm
from tests.errors import raises
from tests.replay.busy import busy_log
from tests.replay.codes import code_in
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record

RECORDS = busy_log(900, apps=8, nodes=4)
PROGRAM = str(Path(sys.executable).with_name("dorm"))


async def saved(folder: Path, records: list[Record] = RECORDS) -> Path:
    path = folder / "incident.dorm"
    await export(log_of(records), path)
    return path


async def test_a_page_of_a_part(tmp_path: Path) -> None:
    file, page = await saved(tmp_path), tmp_path / "part.html"
    words = ("replay", "page", "--file", str(file), "-o")
    code, out, err = await dorm(tmp_path, *words, str(page), "--since", "300", "--until", "500")
    assert (code, err) == (0, "")
    assert re.search(r"^\d+ apps, 200 moments and \d+ decisions? are in ", out.replace("\n", " "))
    assert page.read_text().startswith("<!doctype html>")
    code, _, err = await dorm(tmp_path, *words, str(page))
    assert (code, code_in(err)) == (1, "file.exists")
    code, _, err = await dorm(tmp_path, *words, str(tmp_path / "x.pdf"))
    assert (code, code_in(err)) == (2, "usage.file_name")
    code, _, err = await dorm(tmp_path, *words, str(tmp_path / "y.html"), "--since", "9999")
    assert (code, code_in(err)) == (1, "moment.after_end")
    assert not (tmp_path / "y.html").exists()


async def test_an_archive_is_served_read_only(tmp_path: Path) -> None:
    file = await saved(tmp_path)
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "replay", "open", str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "400", "PATH": "/usr/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        first = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert found is not None, first
        async with aiohttp.ClientSession(base_url=found[0]) as session:
            async with session.get("/v1/ready") as answer:
                ready = answer.status
            for _ in range(200):
                if ready == 200:
                    break
                await asyncio.sleep(0.05)
                async with session.get("/v1/ready") as answer:
                    ready = answer.status
            for at, expected in ((None, str(len(RECORDS))), ("400", "400")):
                async with session.get("/v1/view", params={"at": at} if at else {}) as answer:
                    assert (await answer.json())["position"] == expected
            async with session.get("/v1/events", params={"limit": "3", "kind": "Resized"}) as answer:
                assert {one["kind"] for one in (await answer.json())["items"]} == {"Resized"}
            async with session.post("/v1/nodes/gpu-01/drain", json={}) as answer:
                assert (answer.status, (await answer.json())["code"]) == (409, "log.refused")
            async with session.get("/") as answer:
                assert 'name="dorm-archive" content="incident"' in await answer.text()
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) in (0, 130)


async def test_invalid_moments() -> None:
    from replay.moments import AtSequence, MomentError
    from replay.page.recording import record

    log = log_of(RECORDS)
    with raises(MomentError, "moment.end_before_start"):
        await record(log, "x", AtSequence(300), AtSequence(200))
    with raises(MomentError, "moment.after_end"):
        await record(log, "x", None, AtSequence(99_999))


pytestmark = pytest.mark.slow
