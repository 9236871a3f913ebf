"""The folder of a history belongs to it alone, and if something else removes it, that does not count as a broken promise."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.simulation.world import world as worlds
from tests.simulation.world.world import Disturbed, World

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(worlds, "_MEMORY", tmp_path)
    return tmp_path


def test_a_folder_in_use_is_never_swept(shelf: Path) -> None:
    """Regardless of process ids: this folder belongs to a process that is invisible here."""
    left = shelf / f"{worlds._PREFIX}999999999-0"
    left.mkdir()
    with World(1) as world:
        assert not left.exists(), "left by a killed process"
        hidden = world.folder.rename(shelf / f"{worlds._PREFIX}999999999-1")
        worlds._sweep.__wrapped__(shelf)
        assert hidden.exists()
        hidden.rename(world.folder)
    assert not world.folder.exists()


def test_a_folder_that_another_program_removes_is_not_a_finding(shelf: Path) -> None:
    with pytest.raises(Disturbed, match="seed 7"):
        _played_while_its_folder_is_removed(7)


def _played_while_its_folder_is_removed(seed: int) -> None:
    with World(seed) as world:
        shutil.rmtree(world.folder)
        os.makedirs(world.folder)  # An agent makes its folders when it needs them.
