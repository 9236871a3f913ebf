"""Settings of deployments for tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from dorm.deploy.rendering import TEMPLATES
from dorm.deploy.settings_file import Deployment, check

PROGRAM = str(Path(sys.executable).parents[1])
"""The environment of the tests has both programs in its `bin`."""


def document(**changes: Any) -> dict[str, Any]:
    """The settings file that `dorm deploy example` prints, with some of its settings changed."""
    found: dict[str, Any] = yaml.safe_load((TEMPLATES / "deploy.yaml").read_text())
    return {**found, **changes}


def deployment(**changes: Any) -> Deployment:
    return check(document(**changes))
