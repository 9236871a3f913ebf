"""The metadata of a release: supported Pythons, and a bill of materials of everything that it uses."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.commands import REPOSITORY

_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_supported_pythons_agree() -> None:
    """The package's metadata, the script that tries them, and the documentation."""
    named = [one.rpartition(" ")[2] for one in _PROJECT["classifiers"] if "Python :: 3." in one]
    (tried,) = re.findall(r"^for version in ([\d. ]+); do$", (REPOSITORY / ".ci/pythons").read_text(), re.MULTILINE)
    assert tried.split() == named
    assert _PROJECT["requires-python"] == f">={named[0]}"
    said = (REPOSITORY / "docs/operations/deployment.md").read_text()
    assert f"Python {', '.join(named[:-1])} and {named[-1]}" in said


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_the_bill_of_materials_is_complete() -> None:
    done = await asyncio.to_thread(
        subprocess.run, [".ci/sbom", sys.executable], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads((REPOSITORY / f"dist/dorm-{_PROJECT['version']}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "dorm"
    components = {canonicalize_name(one["name"]): one for one in bill["components"]}
    for asked in _PROJECT["dependencies"]:
        name = canonicalize_name(Requirement(asked).name)
        (reference,) = components[name]["externalReferences"][-1:]
        assert reference["hashes"], f"{name} has the hashes of the lock"
    notices = (REPOSITORY / "dist/NOTICES.txt").read_text()
    headings = {canonicalize_name(name) for name in re.findall(r"^## (\S+)", notices, re.MULTILINE)}
    assert components.keys() <= headings
    assert notices.count("Apache License") >= 3
