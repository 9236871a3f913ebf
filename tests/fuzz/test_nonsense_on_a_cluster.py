"""Nonsense on a real cluster: on the log, on the bus and in an app's own progress file, while that app trains."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import nats
import pytest

from dorm.local.cluster import LocalCluster, LocalOptions
from events import subjects
from events.codec import decode
from events.kinds import Round, Unknown, Unreadable
from events.log.records import Record
from replay.audit.audit import verify
from tests.fuzz.running import source_of
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets_events import make_record

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats

_CLUSTER = "nonsense"
_COUNT = 3000
TRAINER = """\
import json, os, random, sys, time
chance = random.Random(1)
with open(os.environ["DORM_PROGRESS"], "ab") as progress:
    for step in range(25):
        progress.write(json.dumps({"step": step, "loss": 1.0}).encode() + b"\\n")
        progress.write(chance.randbytes(300) + b"\\xff\\n" + b"[" * 5000 + b"\\n" + b'{"step": 1e999}\\n\\xc3')
        progress.write(b"\\n" + json.dumps({"checkpoint": step}).encode() + b"\\n")
        progress.flush()
        time.sleep(0.1)
"""


def nonsense() -> list[tuple[str, bytes]]:
    """Yield records that no reader may believe; well-formed forgeries are a matter of a server's permissions."""
    found = []
    for number in range(_COUNT):
        subject, body = make_record(source_of("cluster", number))
        kind, who = subject.split(".")[2:4] if subject.count(".") == 3 else ("AppProgressed", "ann")
        if not kind or not who or not subjects.valid(f"{kind}.{who}"):
            continue
        subject = f"dorm.{_CLUSTER}.{kind}.{who}"
        if isinstance(decode(Record(1, 1, subject, body)), Unreadable | Unknown):
            found.append((subject, body))
    return found


async def test_a_master_and_an_agent_outlive_it_and_the_app_completes(tmp_path: Path) -> None:
    options = LocalOptions(
        data=tmp_path, cluster=_CLUSTER, runtime="process", capacity={"cpu": 1000, "memory": 2**30}, ports=(23_000, 23_099),
        report_interval_s=0.2, progress_interval_s=0.1,
    )  # fmt: skip
    async with LocalCluster(options) as cluster:
        command = [sys.executable, "-c", TRAINER]
        app = await cluster.client.submit({"name": "witness", "command": command, "demand": {"cpu": 1}})
        stranger = await nats.connect(cluster.server.url)
        try:
            sent = await asyncio.to_thread(nonsense)  # it reads the golden logs in its own loop
            assert len(sent) > _COUNT // 3
            for number, (subject, body) in enumerate(sent):
                await stranger.publish(subject, body)
                await stranger.publish(subjects.report(_CLUSTER, "node-1"), body)
                await stranger.publish(subjects.report(_CLUSTER, f"nobody-{number}"), body)
                question = TARGETS["question"].make(source_of("cluster", number))
                await stranger.publish(subjects.ask(_CLUSTER, "node-1", "logs"), question, reply=stranger.new_inbox())
            await stranger.flush()
        finally:
            await stranger.close()
        failed = asyncio.create_task(cluster.failed())
        completed = asyncio.create_task(cluster.client.wait(app.id))
        await asyncio.wait({failed, completed}, timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
        assert not failed.done(), failed
        failed.cancel()
        ended = await completed
        assert (ended.ended, ended.failures, ended.checkpoint) == ("completed", 0, 24)
        state = await cluster.client.state()
        assert state.counters.unreadable + state.counters.unknown >= len(sent)
        assert not state.submissions, "every stranger has an answer"
        report = await verify(cluster.client.log)
        assert report.divergence is None
        rounds = [event async for record in cluster.client.records() if isinstance(event := decode(record), Round)]
        assert {event.by for event in rounds} == {cluster.master.name}
        await cluster.stop_now()
