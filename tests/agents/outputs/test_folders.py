"""The folders of an app in the shared folder: made once, with their owner, and removed together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agents.outputs import folders
from agents.outputs.folders import CheckpointFolder, NotShared
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shared(tmp_path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(tmp_path / "shared")
    folder.open()
    return folder


def test_every_generation_finds_the_same_outputs(shared: CheckpointFolder) -> None:
    first = folders.folders_of(shared, "app-1", "alice", resume=False, cluster="")
    (first.outputs / "model").write_text("best")
    again = folders.folders_of(shared, "app-1", "alice", resume=True, cluster=shared.id)
    assert again == first
    assert (again.outputs / "model").read_text() == "best"
    assert folders.owner_of(shared.path, "app-1") == "alice"
    assert [path.name for path in (shared.path / folders.APPS / "app-1").iterdir() if path.name[0] == "."] == []


def test_an_app_of_an_earlier_release_gets_outputs_when_it_resumes(shared: CheckpointFolder) -> None:
    (shared.path / "app-1").mkdir()
    assert folders.folders_of(shared, "app-1", "", resume=True, cluster="").outputs.is_dir()


def test_no_folder_is_made_in_another_clusters_folder(shared: CheckpointFolder) -> None:
    with raises(NotShared, "checkpoints.differs"):
        folders.folders_of(shared, "app-1", "", resume=False, cluster="b" * 32)
    assert not (shared.path / folders.APPS).exists()


def test_removing_an_app_removes_all_its_files_and_no_others(shared: CheckpointFolder) -> None:
    for app in ("app-1", "app-2"):
        made = folders.folders_of(shared, app, "alice", resume=False, cluster="")
        (made.outputs / "model").write_text(app)
        os.symlink(shared.path / "app-2", made.outputs / "link")
    folders.remove(shared.path, "app-1")
    folders.remove(shared.path, "app-1")
    assert sorted(path.name for path in shared.path.iterdir() if path.name[0] != ".") == ["app-2"]
    assert (shared.path / folders.APPS / "app-2/outputs/model").read_text() == "app-2"
    for name in ("..", ".", "", "../shared", folders.APPS, "a/b"):
        folders.remove(shared.path, name)
        assert folders.owner_of(shared.path, name) is None
    assert (shared.path / "app-2").is_dir()
