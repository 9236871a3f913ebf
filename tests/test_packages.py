"""A reader finds a module by its package's docstring, which names each of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    found.parent.relative_to(ROOT).as_posix()
    for top in ("dorm", "events", "agents", "replay", "compose")
    for found in (ROOT / top).rglob("__init__.py")
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_modules(package: str) -> None:
    folder = ROOT / package
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    inside = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted((modules | inside) - set(re.findall(r"\w+", said))) == []


def test_a_folder_is_one_thing() -> None:
    """Near 20 modules a folder is two."""
    sizes = {package: len(list((ROOT / package).glob("*.py"))) for package in PACKAGES}
    assert {package: size for package, size in sizes.items() if size > 22} == {}
