"""Backups of a log: each is read back, and the oldest goes only after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.core.state import digest
from dorm.deploy import backups
from dorm.deploy.backups import BackupError, back_up, copies, report
from events.archive.opening import open_archive
from replay.travel.travel import state_at
from tests.master.sealed import sealed_log
from tests.metrics.scrapes import values
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000_000_000_000
DAY = 86400 * 10**9


async def test_the_newest_copies_are_kept(tmp_path: Path) -> None:
    log = log_of(sealed_log(2, 20).records)
    (tmp_path / "lab-notes.dorm").write_text("of somebody else's")
    for day in range(4):
        kept = await back_up(log, tmp_path, "lab", keep=2, now=NOW + day * DAY)
    await back_up(log, tmp_path, "lab2", keep=1, now=NOW)
    assert [path.name for path in copies(tmp_path, "lab")] == [
        "lab-20270117T080000.000Z.dorm",
        "lab-20270118T080000.000Z.dorm",
    ]
    assert kept.removed == [str(tmp_path / "lab-20270116T080000.000Z.dorm")]
    assert (tmp_path / "lab-notes.dorm").exists()
    archive = await open_archive(copies(tmp_path, "lab")[-1])
    assert digest(await state_at(archive)) == kept.digest == digest(await state_at(log))
    await archive.close()


async def test_a_copy_that_cannot_be_read_back_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(sealed_log(2, 20).records)
    for day in range(2):
        await back_up(log, tmp_path, "lab", keep=2, now=NOW + day * DAY)
    before = copies(tmp_path, "lab")
    export = backups.export  # type: ignore[attr-defined]

    async def on_a_bad_disk(*arguments: object, **more: object) -> object:
        done = await export(*arguments, **more)  # type: ignore[arg-type]
        newest = copies(tmp_path, "lab")[-1]
        body = bytearray(newest.read_bytes())
        body[len(body) // 2] ^= 1
        newest.write_bytes(body)
        return done

    monkeypatch.setattr(backups, "export", on_a_bad_disk)
    with pytest.raises(BackupError) as failed:
        await back_up(log, tmp_path, "lab", keep=2, now=NOW + 2 * DAY)
    assert failed.value.code == "backup.damaged"
    assert copies(tmp_path, "lab") == before
    assert len(list(tmp_path.glob("lab-*.damaged"))) == 1


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BackupError) as failed:
        await back_up(log_of([]), tmp_path / "absent", "lab", keep=2, now=NOW)
    assert failed.value.code == "backup.no_folder"


async def test_metrics_say_when_the_newest_was_made(tmp_path: Path) -> None:
    kept = await back_up(log_of(sealed_log(2, 20).records), tmp_path, "lab", keep=2, now=NOW)
    report(kept, "lab", NOW, tmp_path / "backup.prom")
    found = values((tmp_path / "backup.prom").read_bytes())
    assert found["dorm_backup_time_seconds", (("cluster", "lab"),)] == NOW / 1e9
    assert found["dorm_backup_records", (("cluster", "lab"),)] == kept.records
    with pytest.raises(BackupError) as failed:
        report(kept, "lab", NOW, tmp_path / "absent" / "backup.prom")
    assert failed.value.code == "backup.metrics"
