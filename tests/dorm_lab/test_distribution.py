"""`dorm-lab` is released with `dorm`: one version, each names the other, and the control plane's wheel holds nothing of it."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.docs.shown import REPOSITORY


def _project(folder: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text())["project"]
    return project


def test_both_distributions_have_one_version_and_require_each_other() -> None:
    dorm, laboratory = _project("."), _project("lab")
    assert laboratory["version"] == dorm["version"]
    assert laboratory["dependencies"] == [f"dorm=={dorm['version']}"]
    assert dorm["optional-dependencies"]["lab"] == [f"dorm-lab=={dorm['version']}"]
    assert laboratory["requires-python"] == dorm["requires-python"]
