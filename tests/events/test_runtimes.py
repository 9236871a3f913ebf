"""A runtime is one registration: nothing else in the product asks for one by its name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from dorm.local.runtimes import _CHOOSERS
from events.runtimes import (
    RUNTIMES,
    WITHOUT_ENGINE,
    RuntimeChoice,
    RuntimeName,
    WantedRuntime,
    runs_images,
    runtime_name,
)

ROOT = Path(__file__).parents[2]
REGISTRATION = {"events/runtimes.py", "dorm/local/runtimes.py"}
"""Besides these, a new runtime needs its own module in `agents/runtime`, and a section of documentation: four files."""
OTHER_MEANINGS = {
    "agents/machine.py": "the control group under which a Docker engine puts containers",
    "dorm/deploy/settings_file.py": "the default of a machine's settings",
    "events/kinds/agents.py": "the runtime of nodes that joined before they announced one",
    "replay/gist.py": "a field of events",
    "replay/simulator/contenders.py": "the timings of simulations, which were measured with it",
}


def test_every_name_of_a_runtime_is_that_of_a_registered_one() -> None:
    assert list(get_args(RuntimeName)) == list(RUNTIMES) == list(_CHOOSERS)
    assert list(get_args(WantedRuntime)) == list(RuntimeChoice) == ["auto", *RUNTIMES]
    assert not RUNTIMES[WITHOUT_ENGINE].engine


def test_a_new_runtime_needs_at_most_four_files() -> None:
    """Benchmarks measure two particular runtimes, so they name them."""
    naming = set()
    for top in ("dorm", "events", "agents", "replay"):
        for path in (ROOT / top).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(("dorm/bench/", "dorm/cli/bench/", "agents/runtime/")):
                continue
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            if any(isinstance(value, str) and value in RUNTIMES for value in constants):
                naming.add(name)
    assert naming - OTHER_MEANINGS.keys() == REGISTRATION
    assert len(REGISTRATION) + len({"agents/runtime/NAME.py", "docs/containers.md"}) <= 4


@pytest.mark.parametrize(
    ("announced", "name", "images"),
    [("docker 27.3.1", "docker", True), ("process", "process", False), ("later 1", "later", True)],
)
def test_an_announced_runtime_may_be_unknown(announced: str, name: str, images: bool) -> None:
    assert (runtime_name(announced), runs_images(announced)) == (name, images)
