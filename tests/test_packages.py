"""Each package's docstring names its modules, so a reader finds them."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    found.parent.relative_to(ROOT).as_posix()
    for top in ("dorm", "events", "agents", "replay", "compose", "lab/dorm_lab")
    for found in (ROOT / top).rglob("__init__.py")
)


NAMED_AFTER_THEIR_COMMAND = ("dorm/cli/", "dorm/api/resources/")
"""Front ends: a module is named after the command or the resource that it serves, and so is what it calls."""
DISTRIBUTIONS = ("dorm/remote/", "dorm/elastic/")
"""Distributions of their own, whose modules users import by these names."""
SHARED_NAMES = {
    "errors": "the exceptions of a package",
    "execution": "how each runtime runs a command in a container",
    "keeper": "what ends a session of each runtime",
    "runtime": "the runtime itself, of processes and of Docker",
    "checkpoints": "of an app: as a client and as an agent sees them",
    "delays": "what nodes try again: the core's rule, and the agent's part",
    "files": "of an app: as a client and as an agent handles them",
    "offers": "of nodes: the core's rule, and the agent's part",
    "progress": "of apps: the core's rule, and the agent's part",
    "sessions": "in containers: the client's and the agent's side",
}
"""Names that several modules have because they are one concept in several places."""
REASON = "A package of its own because "


@pytest.mark.parametrize("package", PACKAGES)
def test_a_small_package_says_why_it_is_one(package: str) -> None:
    """A folder of three modules is one more place to look into."""
    folder = ROOT / package
    inside = {path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")}
    inside |= set(folder.glob("*/__init__.py"))
    text = " ".join((ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split())
    assert len(inside) >= 4 or REASON in text, f"merge its modules, or say so in its docstring: {REASON}…"


def test_a_name_of_a_module_says_which_one_it_is() -> None:
    """A module is found by its name."""
    places: dict[str, list[str]] = {}
    for top in ("dorm", "agents", "replay"):
        for file in sorted((ROOT / top).rglob("*.py")):
            place = file.relative_to(ROOT).as_posix()
            if file.stem not in ("__init__", "__main__") and not place.startswith(
                NAMED_AFTER_THEIR_COMMAND + DISTRIBUTIONS
            ):
                places.setdefault(file.stem, []).append(place)
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() - several.keys() == set(), "a name that is not shared any more"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_modules(package: str) -> None:
    folder = ROOT / package
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    inside = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted((modules | inside) - set(re.findall(r"\w+", said))) == []


def test_files_of_the_product_have_at_most_1200_lines() -> None:
    """A module holds a whole concept; beyond this it holds two."""
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text().count("\n")
        for package in PACKAGES
        for path in (ROOT / package).glob("*.py")
    }
    assert {path: count for path, count in lines.items() if count > 1200} == {}


def test_a_package_that_lists_names_has_them() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package.removeprefix("lab/").replace("/", "."))
        assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == []


def test_importing_replay_loads_nothing_else() -> None:
    """Each reader is loaded when it is used; errors have one root."""
    program = (
        "import sys, replay; print([name for name in sys.modules if name.startswith(('dorm', 'events', 'replay'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['events', 'events.errors', 'replay']"


def test_an_agent_of_processes_imports_no_solver_and_no_docker() -> None:
    """Each of these takes longer to import than all that such an agent needs."""
    program = (
        "import sys, dorm.cli.agent, dorm.local.announced, dorm.local.runtimes, agents.agent;"
        "print([name for name in ('numpy', 'scipy', 'aiodocker', 'aiohttp', 'dorm.master') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_architecture_names_files_that_exist() -> None:
    """A row that leads nowhere is worse than none.  A name without a folder is a sibling of the path before it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = {path for path in listed if (ROOT / path).exists()}
    wrong = []
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        before = ""
        for path in re.findall(r"`([\w./-]+(?:\.py|\.js|/))`", line):
            whole, sibling = path.rstrip("/"), f"{before.rpartition('/')[0]}/{path}"
            if any(file == path or file.startswith(f"{whole}/") for file in files):
                before = path
            elif not any(file.startswith(sibling) for file in files):
                wrong.append(path)
    assert wrong == []
