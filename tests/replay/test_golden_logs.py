"""Logs of earlier releases and incidents under pseudonyms fold as ever, under any hash seed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from dorm.core.state import SCHEMA
from events.archive.segments import open_archive
from events.codec import decode
from events.kinds import Round, Unreadable
from replay.export.anonymize import anonymized
from tests.golden.made import FOLDER, MADE, archives

ROOT = Path(__file__).parents[2]
EXPECTED: dict[str, Any] = json.loads(MADE.read_text())
RELEASES = [path.name for path in archives() if re.match(r"[0-9]+\.", path.name)]
INCIDENTS = sorted(set(EXPECTED) - set(RELEASES))


@cache
def made(hash_seed: int) -> dict[str, Any]:
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "made"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_log_is_known() -> None:
    """A log that was added without what is made of it proves nothing."""
    assert [path.name for path in archives()] == sorted(EXPECTED)
    assert {"0.1.0.dorm", "0.2.0.dorm", "0.3.0.dorm"} <= set(RELEASES)
    assert INCIDENTS


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_golden_log_folds_to_its_digest(name: str) -> None:
    """See `tests.golden` before you rewrite it."""
    expected, found = EXPECTED[name], made(0)[name]
    for part in ("kinds", "along", "end"):
        assert found[part] == expected[part]
    if expected["core"] == SCHEMA:
        assert found["digest"] == expected["digest"]


def test_hash_seeds_decide_nothing() -> None:
    assert made(0) == made(4711)


@pytest.mark.parametrize("name", INCIDENTS)
def test_incidents_are_decided_again(name: str) -> None:
    found, expected = made(0)[name]["audit"], EXPECTED[name]["audit"]
    assert found["divergence"] == ""
    assert (found["events"], found["rounds"]) == (expected["events"], expected["rounds"])
    assert found["checked"] == found["rounds"] or found["not_checked"]
    assert {name: count for name, (count, _) in made(0)[name]["stories"].items()}.keys() == expected_names(name)
    assert all(count for count, _ in made(0)[name]["stories"].values())


def expected_names(name: str) -> set[str]:
    return {*EXPECTED[name]["end"]["apps"], *EXPECTED[name]["end"]["nodes"]}


def test_an_incident_is_complete() -> None:
    kinds = set(EXPECTED["incident.dorm"]["kinds"])
    assert {"NodeLost", "NodeLeaseEnded", "AppFailed", "AppRejected", "AppCancelled", "GenerationFailed"} <= kinds
    assert {"AppCheckpointed", "AppProgressed", "NodeDrainRequested", "PolicyChanged"} <= kinds


@pytest.mark.parametrize("name", INCIDENTS)
async def test_an_incident_was_anonymized(name: str) -> None:
    """Again changes nothing: there is nothing left in it that has a pseudonym.  Of an earlier core's rounds only what this
    core derives from states, such as digests, may come out otherwise."""
    archive = await open_archive(FOLDER / name)
    assert archive.anonymized
    records = [record async for batch in archive.read() for record in batch]
    again = [record async for batch in (await anonymized(archive)).read() for record in batch]
    await archive.close()
    for record, once_more in zip(records, again, strict=True):
        event = decode(record)
        derived = isinstance(event, Round) and event.core != SCHEMA
        assert once_more == msgspec.structs.replace(record, body=once_more.body)
        # Until 0.7.0, pseudonyms of variables were no names of variables.
        before = record.body.replace(b"VARIABLE-", b"VARIABLE_")
        # The same map has a longer header where its kind has more than 15 fields by now, so bytes can't be compared.
        assert derived or msgpack.unpackb(once_more.body, object_pairs_hook=list) == msgpack.unpackb(
            before, object_pairs_hook=list
        )


@pytest.mark.parametrize("name", RELEASES)
async def test_logs_of_each_release_are_read(name: str) -> None:
    archive = await open_archive(FOLDER / name)
    records = [record async for batch in archive.read() for record in batch]
    await archive.close()
    rounds = [event for event in map(decode, records) if isinstance(event, Round)]
    assert len(rounds) >= 20
    # The nonsense of strangers is in there, and nothing else that can't be read.
    unreadable = [event for event in map(decode, records) if isinstance(event, Unreadable)]
    assert len(unreadable) == EXPECTED[name]["kinds"]["Unreadable"]
    assert len(unreadable) < 20
