"""Which files of a checkpoint are in doubt after a report, and which can be set aside."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.outputs import checkpoints
from agents.outputs.checkpoints import FileNote, in_doubt, judge, listing, look, note, noted, units, with_growth
from agents.outputs.folders import APPS
from events.kinds import MOST_DOUBTED, Doubt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APP = "app-1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / APPS / APP).mkdir(parents=True)
    (tmp_path / APP).mkdir()
    return tmp_path


def write(root: Path, path: str, content: str) -> None:
    """In place, at a later moment of the file server's clock than any before: its clock may tick slowly."""
    file = root / APP / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    write.moment += 1_000_000_000  # type: ignore[attr-defined]
    os.utime(file, ns=(write.moment, write.moment))  # type: ignore[attr-defined]


write.moment = 1_700_000_000_000_000_000  # type: ignore[attr-defined]


def saved(root: Path, *paths: str) -> None:
    """The app has saved these completely, and an agent has read its report."""
    for path in paths:
        write(root, path, f"complete {path}")
    note(root, APP, 1)


def renamed(root: Path) -> None:
    write(root, "model.pt.tmp", "torn")


def linked(root: Path) -> None:
    (root / APP / "latest").symlink_to("step-30.pt")
    os.mkfifo(root / APP / "pipe")
    (root / APP / b"\xff\xfe".decode("utf-8", "surrogateescape")).write_text("of another encoding")


def older(root: Path) -> None:
    """As a node sees it whose network file system has not noticed yet what another node wrote."""
    os.utime(root / APP / "model.pt", ns=(1, 1))


def rotated(root: Path) -> None:
    (root / APP / "step-20.pt").unlink()


def logged(root: Path) -> None:
    for name in ("events.out.tfevents.17", "train.log", "metrics.jsonl", "samples/40.png", "wandb/run.bin"):
        write(root, name, "more")


@pytest.mark.parametrize(
    ("then", "files", "before"),
    [
        (lambda root: None, None, False),
        (lambda root: write(root, "model.pt", "torn"), ["model.pt"], False),
        (lambda root: write(root, "model.pt", "complete model.pt"), ["model.pt"], False),  # another time, the same size
        (lambda root: write(root, "model.pt", "complete model.pt and more"), ["model.pt"], False),
        (lambda root: (root / APP / "model.pt").unlink(), ["model.pt"], False),
        (lambda root: write(root, "step-40.pt", "torn"), ["step-40.pt"], True),
        (lambda root: write(root, "hf/checkpoint-40/model/shard-1", "torn"), ["hf/checkpoint-40/"], True),
        (lambda root: write(root, "other-40.pt", "torn"), ["other-40.pt"], False),
        (lambda root: write(root, "final.pt", "torn"), ["final.pt"], False),
        (older, None, False),
        (renamed, None, False),
        (linked, None, False),
        (rotated, None, False),
        (logged, None, False),
    ],
)
def test_what_changes_after_a_report_is_in_doubt(
    root: Path, then: Callable[[Path], object], files: list[str] | None, before: bool
) -> None:
    saved(root, "step-20.pt", "step-30.pt", "model.pt", "hf/checkpoint-30/model/shard-1", "train.log")
    then(root)
    found = look(root, APP, 1)
    assert found == (Doubt(files=files, before=before) if files is not None else None)
    saved(root)
    assert look(root, APP, 1) is None, "a new report is about what is there then"


def test_a_file_of_any_name_that_only_grows_is_a_log(root: Path) -> None:
    for content in ("1", "1 2"):
        write(root, "history", content)
        saved(root, "model.pt")
    write(root, "history", "1 2 3")
    assert look(root, APP, 1) is None
    write(root, "history", "1")
    assert look(root, APP, 1) == Doubt(files=["history"]), "it was written again"


def test_without_a_report_or_with_too_many_files_all_is_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "model.pt", "torn")
    assert look(root, APP, 1) is None
    saved(root, "model.pt")
    monkeypatch.setattr(checkpoints, "MOST_FILES", 1)
    write(root, "more.pt", "")
    assert listing(root / APP) is None
    assert look(root, APP, 1) is None
    note(root, APP, 1)
    assert noted(root, APP) is None, "what was noted before is not what the report was about"
    (root / APPS / APP / "believed").write_bytes(b"\xc1 anything")
    assert look(root, APP, 1) is None
    assert judge(root, APP, 2, fall_back=True) is None


def test_what_is_removed_during_a_look_does_not_hide_the_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs remove the checkpoint before, right after they have reported the next one."""
    write(root, "step-1/model.pt", "old")
    write(root, "step-2/model.pt", "old")
    write(root, "step-3.pt", "new")
    add = checkpoints._add

    def meanwhile(found: checkpoints.Listing, todo: list[str], path: str, entry: os.DirEntry[str], folder: int) -> None:
        if path == "step-2/model.pt":
            (root / APP / path).unlink()
        add(found, todo, path, entry, folder)
        if path == "step-1":
            shutil.rmtree(root / APP / path)

    monkeypatch.setattr(checkpoints, "_add", meanwhile)
    note(root, APP, 1)
    known = noted(root, APP)
    assert known is not None
    assert list(known.files) == ["step-3.pt"]


def test_names_of_files_do_not_fill_the_shared_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST_TEXT", 20)
    saved(root, "model.pt")
    assert listing(root / APP) is not None
    write(root, "another-model.pt", "x")
    assert listing(root / APP) is None


def test_the_event_names_a_bounded_number_of_files(root: Path) -> None:
    saved(root, "model.pt")
    for number in range(MOST_DOUBTED + 3):
        write(root, f"{number:03} \n{'x' * 240}", "")
    found = look(root, APP, 1)
    assert found is not None
    assert (len(found.files), found.more) == (MOST_DOUBTED, 3)
    assert all(len(name) <= 200 and name.isprintable() for name in found.files)


def test_a_late_reader_of_an_earlier_generation_notes_and_says_nothing(root: Path) -> None:
    saved(root, "step-30.pt")
    assert judge(root, APP, 2, fall_back=False) is None
    write(root, "step-40.pt", "generation 2 saves")
    note(root, APP, 1)
    assert look(root, APP, 1) is None
    assert look(root, APP, 2) == Doubt(files=["step-40.pt"], before=True)


def test_falling_back_moves_what_is_in_doubt_once_and_deletes_nothing(root: Path) -> None:
    saved(root, "step-30.pt", "hf/checkpoint-30/a", "config.json")
    write(root, "step-40.pt", "torn")
    write(root, "hf/checkpoint-40/a", "torn too")
    kept = judge(root, APP, 2, fall_back=False)
    assert kept == Doubt(files=["hf/checkpoint-40/", "step-40.pt"], before=True)
    assert (root / APP / "step-40.pt").exists()

    (root / APP / ".doubtful/generation-3").mkdir(parents=True)
    (root / APP / ".doubtful/generation-3/step-40.pt").write_text("from before")
    moved = judge(root, APP, 3, fall_back=True)
    assert moved is not None
    assert moved.aside == ".doubtful/generation-3"
    assert sorted(path.name for path in (root / APP).iterdir()) == [".doubtful", "config.json", "hf", "step-30.pt"]
    aside = {path.relative_to(root / APP / moved.aside).as_posix(): path.read_text()
             for path in (root / APP / moved.aside).rglob("*") if path.is_file()}  # fmt: skip
    assert sorted(aside.values()) == ["from before", "torn", "torn too"]
    assert (aside["step-40.pt"], aside["hf/checkpoint-40/a"]) == ("torn", "torn too")

    write(root, "step-40.pt", "by generation 3")
    assert judge(root, APP, 3, fall_back=True) == moved, "an agent that died tells the same again, and moves nothing"
    assert (root / APP / "step-40.pt").read_text() == "by generation 3"


def test_nothing_is_moved_to_which_a_link_leads_or_through_one(root: Path, tmp_path: Path) -> None:
    saved(root, "step-30.pt")
    write(root, "step-40.pt", "torn")
    (root / APP / "latest").symlink_to("step-40.pt")
    assert judge(root, APP, 2, fall_back=True) == Doubt(files=["step-40.pt"])
    (root / APP / "latest").unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / APP / ".doubtful").symlink_to(outside)
    assert judge(root, APP, 3, fall_back=True) == Doubt(files=["step-40.pt"], before=True)
    assert list(outside.iterdir()) == []
    assert (root / APP / "step-40.pt").exists()


NAMES = st.sampled_from(["a-1", "a-2", "a-3", "d/a-1", "d/b-2", "d/e/c", "model.pt", "x.tmp", "x.log"])
FILES = st.dictionaries(NAMES, st.builds(FileNote, st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)))


@given(FILES, FILES)
def test_what_is_in_doubt_differs_and_units_cover_it(before: dict[str, FileNote], now: dict[str, FileNote]) -> None:
    doubtful = in_doubt(before, now)
    assert doubtful == sorted(set(doubtful))
    assert in_doubt(with_growth(before, now), now) == [], "a report is about what is there"
    for path in doubtful:
        assert path not in before or path not in now or before[path].changes_into(now[path])
        assert path not in ("x.tmp", "x.log")
    parts = units(doubtful, before)
    for path in doubtful:
        assert any(path == unit or (unit.endswith("/") and path.startswith(unit)) for unit in parts)
    assert not any(path.startswith(unit) for unit in parts if unit.endswith("/") for path in before)
