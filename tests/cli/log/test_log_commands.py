"""`dorm log` on files: output and exit codes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.master.sealing import open_key
from events.chain import SealKey, new_seed
from replay.export.export import export
from tests.master.sealed import SealedLog, sealed_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.records import Record
    from tests.cli.conftest import Dorm


def save(records: list[Record], path: Path) -> Path:
    asyncio.run(export(log_of(records), path))
    return path


@pytest.fixture(scope="module")
def sealed() -> SealedLog:
    return sealed_log(3, 100)


@pytest.fixture
def log_file(sealed: SealedLog, tmp_path: Path) -> Path:
    return save(sealed.records, tmp_path / "log.dorm")


def test_a_sound_log(here: Dorm, log_file: Path, sealed: SealedLog) -> None:
    code, out, err = here("log", "verify", "--file", log_file)
    assert (code, err) == (0, "")
    assert f"3 seals by key {sealed.key.public}, from sequence" in out
    assert "these keys are named by the log itself" in out
    assert "8 of 312 records are after the last seal and not verified" in out
    kept = next(line for line in out.splitlines() if line.startswith("keep elsewhere")).rsplit(" ", 1)[1]
    code, out, _ = here("log", "verify", "--file", log_file, "--key", sealed.key.public, "--expect", kept)
    assert code == 0
    assert "named by the log itself" not in out
    assert "the log is as it was sealed up to sequence 312" in out
    code, out, _ = here("log", "verify", "--file", log_file, "-o", "json")
    assert (code, json.loads(out)["seals"], json.loads(out)["damage"]) == (0, 3, None)


def test_damage(here: Dorm, sealed: SealedLog, tmp_path: Path) -> None:
    records = list(sealed.records)
    records[149] = msgspec.structs.replace(records[149], time=1)
    path = save(records, tmp_path / "changed.dorm")
    code, out, err = here("log", "verify", "--file", path)
    assert code == 1
    assert err.endswith(" [seal.differs]\n")
    assert "between sequence 129 and 192" in err
    assert len(err.splitlines()) == 1
    assert "1 seal by key" in out
    code, out, _ = here("log", "verify", "--file", path, "-o", "json")
    assert (code, json.loads(out)["damage"]["first"]) == (1, 129)
    code, out, err = here("replay", "verify", "--file", path, "--jobs", "1")
    assert code == 1
    assert "between sequence 129 and 192" in err
    code, out, _ = here("replay", "verify", "--file", path, "-o", "json", "--jobs", "1")
    assert (code, json.loads(out)["seals"]["damage"]["last"]) == (1, 192)


def test_replay_verify_counts_seals(here: Dorm, log_file: Path, sealed: SealedLog) -> None:
    code, out, err = here("replay", "verify", "--file", log_file)
    assert (code, err) == (0, "")
    assert f"3 seals up to sequence 304 match, by {sealed.key.public}" in out
    other = SealKey(new_seed()).public
    code, _, err = here("replay", "verify", "--file", log_file, "--key", other)
    assert code == 1
    assert "[seal.differs]" in err


def test_a_log_that_was_never_sealed_is_not_called_good(here: Dorm, tmp_path: Path) -> None:
    log = SealedLog()
    log.say(3)
    path = save(log.records, tmp_path / "plain.dorm")
    code, out, err = here("log", "verify", "--file", path)
    assert code == 1
    assert "[seal.differs]" in err
    kept = next(line for line in out.splitlines() if line.startswith("keep elsewhere")).rsplit(" ", 1)[1]
    assert here("log", "verify", "--file", path, "--expect", kept)[0] == 0
    code, out, _ = here("replay", "verify", "--file", path)
    assert code == 0
    assert "no seals: a change that leaves all decisions valid" in out


def test_the_public_key(here: Dorm, tmp_path: Path) -> None:
    assert "[credentials." in here("ps", "--credentials", tmp_path / "none.creds")[2]
    # What one command was given is not another's in the same process.
    code, _, err = here("log", "key")
    assert (code, "[key.not_found]" in err) == (1, True)
    made = open_key(tmp_path / "home" / "lab" / "master.nk")
    assert here("log", "key", "--cluster", "lab") == (0, f"{made.public}\n", "")
    code, out, _ = here("log", "key", "--key", tmp_path / "home" / "lab" / "master.nk", "-o", "json")
    assert (code, json.loads(out)) == (0, {"key": made.public})


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--key", "nonsense"], 2, "key.malformed"),
        (["--key", "C" + "A" * 55], 2, "key.mistyped"),
        (["--expect", "12"], 2, "seal.malformed"),
        (["--expect", "3:" + "0" * 64], 1, "seal.differs"),
        (["--expect", "9999:" + "0" * 64], 1, "seal.differs"),
    ],
)
def test_mistakes_get_one_line(here: Dorm, log_file: Path, words: list[str], code: int, error: str) -> None:
    status, _, err = here("log", "verify", "--file", log_file, *words)
    assert status == code
    assert f"[{error}" in " ".join(err.split())
    assert len(err.splitlines()) == 1
