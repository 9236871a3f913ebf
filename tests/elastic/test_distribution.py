"""`dorm-elastic` alone: what a training image installs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.docs.shown import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_its_wheel_trains_without_the_control_plane(tmp_path: Path) -> None:
    built = tmp_path / "built"
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", REPOSITORY / "dorm" / "elastic", source], check=True)
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    built.mkdir()
    subprocess.run([sys.executable, "-c", build, built], cwd=source, check=True, capture_output=True)
    (wheel,) = built.glob("dorm_elastic-*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    packaged = {path.relative_to(installed / "dorm" / "elastic") for path in installed.rglob("*.py")}
    folder = REPOSITORY / "dorm" / "elastic"
    assert packaged == {path.relative_to(folder) for path in folder.rglob("*.py")}
    # The environment of these tests finds the project by its own hook, which a training image does not have.
    code = (
        "import sys\nsys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
        "import numpy as np\nfrom dorm import elastic\nw = np.zeros(1)\n"
        "with elastic.join(state={'w': w}) as job:\n"
        "    for step in job.steps(10, batch=5, epochs=2):\n"
        "        w += step.sum_over(lambda samples: float(samples.sum()))\n"
        "print(w[0])\n"
        "try:\n    import dorm.core\nexcept ImportError:\n    print('alone')\n"
    )
    environment = {"PYTHONPATH": str(installed), "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("90.0\nalone\n", "")


def test_both_distributions_have_one_version() -> None:
    versions = [
        tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in (".", "dorm/elastic")
    ]
    assert versions[0] == versions[1]
