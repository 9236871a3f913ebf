"""The master's key file, and when a seal is due."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dorm.master.sealing import LONGEST_NS, MOST_RECORDS, KeyFileError, Sealer, open_key
from events.chain import SealKey, is_signed_seal, new_seed
from events.codec import decode
from events.kinds import SealRequested
from events.log.records import Record
from tests.errors import raises
from tests.master.sealed import CLUSTER, SealedLog

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    with ThreadPoolExecutor(8) as starts:
        keys = {key.public for key in starts.map(open_key, [path] * 16)}
    assert keys == {open_key(path).public}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    open_key(path)
    path.chmod(mode)
    with raises(KeyFileError, "key.too_open") as refused:
        open_key(path)
    assert path.read_text().strip() not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", new_seed()[:-4], b"\x00" * 2000], ids=["nothing", "nonsense", "cut", "long"]
)
def test_a_file_without_a_valid_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with raises(KeyFileError, "key.malformed"):
        open_key(path)


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with raises(KeyFileError, "key.unreadable"):
        open_key(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with raises(KeyFileError, "key.not_a_file"):
        open_key(tmp_path / "pipe")
    (tmp_path / "plain").write_text("")
    with raises(KeyFileError, "key.unreadable", "plain"):
        open_key(tmp_path / "plain" / "key")


def sealer_of(log: SealedLog, key: SealKey | None = None) -> Sealer:
    sealer = Sealer(CLUSTER, key or log.key)
    for record in log.records:
        sealer.take(record, decode(record))
    return sealer


def test_a_seal_is_due_some_time_after_the_first_unsealed_record() -> None:
    log = SealedLog()
    log.say(10)
    assert sealer_of(log).due() == log.records[0].time + LONGEST_NS
    log.seal()
    assert sealer_of(log).due() is None, "an idle log does not grow"
    log.say(2)
    assert sealer_of(log).due() == log.records[-2].time + LONGEST_NS


def test_a_seal_is_due_at_once_after_many_records_or_on_request() -> None:
    log = SealedLog()
    log.say(MOST_RECORDS - 2)
    assert sealer_of(log).due()
    log.say(1)
    assert sealer_of(log).due() == 0
    log.seal()
    sealer = sealer_of(log)
    asked = Record(len(log.records) + 1, 1, f"dorm.{CLUSTER}.SealRequested.me", b"")
    sealer.take(asked, SealRequested())
    assert sealer.due() == 0


def test_records_between_a_seal_and_its_basis_are_sealed_later() -> None:
    log = SealedLog()
    log.say(3)
    log.seal(late=2)
    assert sealer_of(log).due() == log.records[-1].time + LONGEST_NS


def test_records_that_were_changed_after_they_were_sealed_are_noticed() -> None:
    log = SealedLog()
    log.say(5)
    log.seal(late=2)
    log.say(5)
    log.seal()
    assert sealer_of(log).misfit == 0
    log.records[9].time += 1
    assert sealer_of(log).misfit == len(log.records)
    log.records[1].time += 1
    assert sealer_of(log).misfit == 9


def test_without_a_key_only_the_chain_is_kept() -> None:
    log = SealedLog()
    log.say(3)
    sealer = Sealer(CLUSTER, None)
    for record in log.records:
        sealer.take(record, decode(record))
    assert (sealer.due(), sealer.public) == (None, "")
    assert sealer.chain == sealer_of(log).seal(1).chain


def test_a_master_that_starts_at_a_snapshot_also_seals_earlier_records() -> None:
    log = SealedLog()
    log.say(100)
    key = log.key
    late = Sealer(CLUSTER, key, len(log.records), sealer_of(log).chain)
    log.say(30)
    for record in log.records[-30:]:
        late.take(record, decode(record))
    seal = late.seal(1)
    whole = sealer_of(log).seal(1)
    assert (seal.upto, seal.chain) == (whole.upto, whole.chain)
    assert seal.after == 101
    assert is_signed_seal(CLUSTER, 1, seal)
