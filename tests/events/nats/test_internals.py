"""Dorm's use of nats-py's internals: the installed release has them, one module uses them, and the version is bounded."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import nats
import pytest

from events.log.records import LogRefused
from events.nats import internals
from events.nats.link import Link
from tests.docs.shown import REPOSITORY

_OWN = "events/nats/internals.py"
_SOURCES = [
    source
    for folder in ("agents", "compose", "docs", "dorm", "events", "lab", "replay", "tests")
    for source in sorted((REPOSITORY / folder).rglob("*.py"))
    if REPOSITORY / "dorm" / "elastic" not in source.parents  # It is a separate distribution, without NATS.
]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST, *, but_not_by: frozenset[str] = frozenset()) -> frozenset[str]:
    """The private names of methods, attributes of `self`, and class variables; not those of classes whose bases start with
    one of these names."""
    found: set[str] = set()
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef) and but_not_by & {ast.unparse(base).split(".")[0] for base in node.bases}:
            continue
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
        left += ast.iter_child_nodes(node)
    return frozenset(filter(_private, found))


def _imported(tree: ast.AST) -> frozenset[str]:
    """What a module calls that which it imports from nats-py, or from the module that extends it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or "nats" for alias in node.names if alias.name.split(".")[0] == "nats"}
        elif isinstance(node, ast.ImportFrom) and re.match(r"nats\b|events\.nats", node.module or ""):
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


_NAMES = frozenset[str]().union(
    *(_defined(ast.parse(source.read_text())) for source in Path(nats.__file__).parent.rglob("*.py"))
)
"""All private names of nats-py."""


def _uses(source: str) -> list[str]:
    """Where a module uses a private name of nats-py.  A name that the module defines itself, in a class of its own, is not
    taken for nats-py's."""
    if _NAMES.isdisjoint(re.findall(r"\.\s*(_\w+)", source)):
        return []  # Without parsing it: an attribute is written like that.
    tree = ast.parse(source)
    foreign = _NAMES - _defined(tree, but_not_by=_imported(tree))
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in foreign
    ]


def test_the_installed_nats_py_has_the_used_internals() -> None:
    installed = version("nats-py")
    assert internals.missing() == [], f"nats-py {installed} lacks these; change {_OWN}, or the bound in pyproject.toml"


async def test_a_nats_py_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "USED", {"Client": ("_ps", "_psi"), "Subscription": ("_id", "_idea")})
    internals.missing.cache_clear()
    try:
        assert internals.missing() == ["Client._psi", "Subscription._idea"]
        with pytest.raises(
            LogRefused, match=r"^Dorm does not work with nats-py .*: it has no Client\._psi, Sub.*`pip check`"
        ):
            await Link.open("nats://127.0.0.1:4222", name="test", timeout=1.0)
    finally:
        internals.missing.cache_clear()


def test_every_name_that_is_used_is_listed() -> None:
    """The list is complete, and names nothing else: it says what to compare with the next release of nats-py."""
    tree = ast.parse((REPOSITORY / _OWN).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _NAMES}
    assert used == {name for names in internals.USED.values() for name in names if _private(name)}


def test_only_one_module_uses_private_names() -> None:
    found = {str(source.relative_to(REPOSITORY)): _uses(source.read_text()) for source in _SOURCES}
    assert found.pop(_OWN)
    assert {name: uses for name, uses in found.items() if uses} == {}, f"put this into {_OWN}, with the reason"


@pytest.mark.parametrize(
    "source",
    [
        "def f(link): return link.client._server_info",
        "def f(client): client._pending = []",
        "async def f(sub): await sub._conn.drain()",
        "from nats.aio.client import Client\nclass C(Client):\n    def f(self): self._ps = None",
        "from nats.aio.client import Client\nclass C(Client):\n    def f(self): return self._resp_map",
        "import nats.aio.client\nclass C(nats.aio.client.Client):\n    def f(self): return self._resp_map",
        "from nats.aio.client import Client as C\nclass D(C):\n    def _remove_sub(self, sid): super()._remove_sub(sid)",
        "from events.nats import internals\nclass C(internals.AbortingClient):\n    def f(self): return self._resp_map",
    ],
)
def test_a_use_elsewhere_is_found(source: str) -> None:
    assert _uses(source)


def test_a_private_name_of_our_own_is_not_reported() -> None:
    assert _uses("class Link:\n    def f(self): self._pending = 1\ndef g(link): return link._pending") == []


def test_the_version_is_bounded_right_after_the_tested_one() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (wanted,) = (line for line in project["dependencies"] if line.startswith("nats-py"))
    bounds = re.fullmatch(r"nats-py>=2\.(\d+),<2\.(\d+)", wanted)
    assert bounds, f"{wanted} has no upper bound"
    least, beyond = map(int, bounds.groups())
    major, minor, *_ = map(int, version("nats-py").split("."))
    assert (major, minor + 1) == (2, beyond)
    assert least <= minor
