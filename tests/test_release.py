"""The recipe for releases in CONTRIBUTING.md was followed: versions, changelog and golden logs agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_VERSIONS = re.findall(r"^## (\d+\.\d+\.\d+)$", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    assert _VERSIONS[0] == tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert sorted(_VERSIONS, key=_numbers, reverse=True) == _VERSIONS
    assert len(set(_VERSIONS)) == len(_VERSIONS)


def test_every_earlier_release_has_its_log() -> None:
    logs = {path.stem for path in (_ROOT / "tests" / "golden").glob("*.dorm") if path.stem[0].isdigit()}
    assert set(_VERSIONS[1:]) <= logs, "run `python -m tests.golden release VERSION` on the released commit"
    assert logs <= set(_VERSIONS)


def test_every_release_has_notes_for_users() -> None:
    sections = re.split(r"^## .*$", (_ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) == len(_VERSIONS)
    assert all(re.search(r"^\* \S", section, re.MULTILINE) for section in sections)
