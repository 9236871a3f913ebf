"""The fingerprint of sources: another one for every edit, the same one for the same files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from events.sources import fingerprint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a module and a package in it."""
    folder = tmp_path / "edited_package"
    (folder / "inner").mkdir(parents=True)
    for path in ("__init__.py", "one.py", "inner/__init__.py", "inner/two.py"):
        (folder / path).write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    return folder


def asked_again(package: Path) -> str:
    """As another process would."""
    fingerprint.cache_clear()
    return fingerprint(package.name)


@pytest.mark.parametrize("path", ["one.py", "inner/two.py", "inner/new.py"])
def test_every_edit_makes_another_one(package: Path, path: str) -> None:
    before = asked_again(package)
    assert asked_again(package) == before
    (package / path).write_text("value = 2\n")
    after = asked_again(package)
    assert after != before
    (package / path).rename(package / "renamed.py")
    assert asked_again(package) not in (before, after)


def test_only_sources_count(package: Path) -> None:
    before = asked_again(package)
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "one.py").write_text("compiled")
    (package / "notes.txt").write_text("value = 2\n")
    assert asked_again(package) == before
