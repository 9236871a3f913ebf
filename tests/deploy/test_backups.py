"""Backups of a log: each is read back, and the oldest goes only after that."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from dorm.core.state import digest
from dorm.deploy import backups
from dorm.deploy.backups import BackupError, FoldersError, back_up, copies, list_beside, report, restore_folders
from events.archive.segments import open_archive
from events.log.stores import MemoryFiles
from events.workdir import Limits, hash_of, seal_blob
from replay.travel import state_at
from tests.master.sealed import sealed_log
from tests.metrics.scrapes import values
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_800_000_000_000_000_000
DAY = 86400 * 10**9


@pytest.fixture
def open_umask() -> Iterator[None]:
    """What most users have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


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


async def test_a_clock_that_was_ahead_costs_no_copy(tmp_path: Path) -> None:
    """Two nights in 2036, and the clock is right again: the new copy stays, and as many before it as always."""
    log = log_of(sealed_log(2, 20).records)
    await back_up(log, tmp_path, "lab", keep=2, now=NOW, files=await _shipped(b"first"))
    for day in range(2):
        await back_up(log, tmp_path, "lab", keep=2, now=NOW + (3650 + day) * DAY)
    await back_up(log, tmp_path, "lab-2", keep=2, now=NOW - 300 * DAY)
    ahead = [str(path) for path in copies(tmp_path, "lab")][-2:]
    for day in range(1, 4):
        kept = await back_up(log, tmp_path, "lab", keep=2, now=NOW + day * DAY, files=await _shipped(b"last"))
        found = [str(path) for path in copies(tmp_path, "lab")]
        assert found[-3] == kept.file
        assert (found[-2:], kept.ahead) == (ahead, ahead)
        assert len(found) == (3 if day == 1 else 4)
        assert list_beside(tmp_path / kept.file).exists()
    assert len(copies(tmp_path, "lab-2")) == 1
    # A clock that is behind: the copy that was just made is the oldest, and none is removed for it.
    kept = await back_up(log, tmp_path, "lab", keep=1, now=NOW - 900 * DAY)
    assert (kept.removed, len(kept.ahead), copies(tmp_path, "lab")[0]) == ([], 4, tmp_path / kept.file)


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


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError) as failed:
        await back_up(log_of([]), tmp_path / "absent", "lab", keep=2, now=NOW)
    assert failed.value.code == "backup.no_folder"


async def test_metrics_have_the_time_of_the_newest_backup(tmp_path: Path) -> None:
    kept = await back_up(log_of(sealed_log(2, 20).records), tmp_path, "lab", keep=2, now=NOW)
    report(kept, "lab", NOW, tmp_path / "backup.prom")
    found = values((tmp_path / "backup.prom").read_bytes())
    assert found["dorm_backup_time_seconds", (("cluster", "lab"),)] == NOW / 1e9
    assert found["dorm_backup_records", (("cluster", "lab"),)] == kept.records
    with pytest.raises(BackupError) as failed:
        report(kept, "lab", NOW, tmp_path / "absent" / "backup.prom")
    assert failed.value.code == "backup.metrics"


async def _shipped(*contents: bytes) -> MemoryFiles:
    files = MemoryFiles(lambda: NOW)
    await files.set_limits(Limits(count=7))
    for content in contents:
        await files.put("ann", hash_of(content), seal_blob(content))
    return files


async def test_shipped_folders_are_copied_part_by_part_and_restored(tmp_path: Path) -> None:
    log, parts = log_of(sealed_log(2, 20).records), [b"%d" % number * 100 for number in range(6)]
    for day in range(3):
        files = await _shipped(*parts[day : day + 3])
        await files.put("ann", "0" * 64, b"what its name does not say")
        await files.put("ben", hash_of(parts[day]), seal_blob(parts[day]))
        (given_up,) = await files.listed("ben")
        if not day:
            await files.give_up(given_up)
        for number in range(20):  # Parts that several have are copied at the same time.
            await files.put(f"u{number}", hash_of(parts[day]), seal_blob(parts[day]))
        kept = await back_up(log, tmp_path, "lab", keep=2, now=NOW + day * DAY, files=files)
        assert kept.shipped is not None
        assert kept.shipped.parts == (24 if day else 23)
    await back_up(log, tmp_path, "lab", keep=2, now=NOW + 3 * DAY)
    there = sorted(path.name for path in tmp_path.glob("lab-files/??/*"))
    assert there == sorted(map(hash_of, parts[2:5])), "what no copy needs has gone"
    assert len(list(tmp_path.glob("lab-*.files.json"))) == 1

    restored = MemoryFiles(lambda: NOW)
    first, last = copies(tmp_path, "lab")
    done = await restore_folders(restored, first, "lab")
    assert done is not None
    assert done.parts == 24
    assert {(blob.tenant, blob.name) for blob in await restored.listed() if blob.tenant < "u"} == {
        *(("ann", hash_of(one)) for one in parts[2:5]), ("ben", hash_of(parts[2])),
    }  # fmt: skip
    assert await restored.limits() == Limits(count=7)
    assert await restore_folders(MemoryFiles(lambda: NOW), last, "lab") is None, "they were left out"


@pytest.mark.parametrize(("shared", "file", "folder"), [(False, 0o600, 0o700), (True, 0o640, 0o2750)])
async def test_only_the_owner_can_read_a_backup_unless_its_folder_is_shared(
    tmp_path: Path, open_umask: None, shared: bool, file: int, folder: int
) -> None:
    place = tmp_path / "backups"
    place.mkdir()
    place.chmod(0o2755 if shared else 0o755)
    await back_up(log_of(sealed_log(2, 20).records), place, "lab", keep=2, now=NOW, files=await _shipped(b"one"))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {file}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {folder}
    assert len(modes) == 5


async def test_a_damaged_part_is_named_after_all_else_is_restored_and_copied_again(tmp_path: Path) -> None:
    log, files = log_of(sealed_log(2, 20).records), await _shipped(b"one", b"two", b"three")
    await back_up(log, tmp_path, "lab", keep=2, now=NOW, files=files)
    for content in (b"one", b"two"):
        (path,) = tmp_path.glob(f"lab-files/??/{hash_of(content)}")
        path.write_bytes(seal_blob(b"another")) if content == b"one" else path.unlink()
    restored = MemoryFiles(lambda: NOW)
    (copy,) = copies(tmp_path, "lab")
    with pytest.raises(FoldersError) as failed:
        await restore_folders(restored, copy, "lab")
    assert failed.value.code == "backup.files_damaged"
    assert [blob.name for blob in await restored.listed()] == [hash_of(b"three")]
    await back_up(log, tmp_path, "lab", keep=2, now=NOW + DAY, files=files)
    done = await restore_folders(restored, copy, "lab")
    assert done is not None
    assert done.parts == 3
    list_beside(copy).write_text("{")
    with pytest.raises(FoldersError) as failed:
        await restore_folders(restored, copy, "lab")
    assert failed.value.code == "backup.files_not_read"
