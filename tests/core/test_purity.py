"""The core imports nothing that could make two folds differ, and iterates no set."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import dorm.core

MODULES = sorted(Path(dorm.core.__file__).parent.rglob("*.py"))
HARMLESS = {"sorted", "len", "any", "all", "min", "max", "set", "frozenset", "bool"}
"""Calls that may read a set, for their result does not depend on its order."""
FORBIDDEN = {
    *("asyncio", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess", "threading", "time"),
    "uuid",
}
ORDERED = {"list", "tuple", "iter", "enumerate", "next", "map", "join", "pop"}


def set_names(tree: ast.AST) -> set[str]:
    """Variables, arguments, attributes and functions that are annotated or assigned as sets."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation) if _is_set_type(annotation):
                found.add(_name(target))
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if _is_set_type(annotation):
                found.add(name)
            case ast.FunctionDef(name=name, returns=ast.expr() as returns) if _is_set_type(returns):
                found.add(name)
            case ast.Assign(targets=[target], value=value) if _is_set(value, set()):
                found.add(_name(target))
    return found - {""}


def _is_set_type(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).split("[")[0] in ("set", "frozenset", "Set", "AbstractSet")


def _is_set(value: ast.expr, known: set[str]) -> bool:
    match value:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=func):
            return _name(func) in {"set", "frozenset", "union", "intersection", "difference"} | known
        case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return _is_set(left, known) or _is_set(right, known)
        case ast.Name() | ast.Attribute():
            return _name(value) in known
    return False


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def iterated_sets(source: str) -> list[int]:
    """Lines in which a set's order could show: loops, comprehensions, unpacking, and calls that keep an order.

    A comprehension that makes a set, or that is the argument of a harmless call, shows no order.
    """
    tree = ast.parse(source)
    known = set_names(tree)
    harmless = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node.func) in HARMLESS
        for argument in node.args
    }
    lines = []
    for node in ast.walk(tree):
        sources: list[ast.expr] = []
        if isinstance(node, ast.For):
            sources = [node.iter]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp) and id(node) not in harmless:
            sources = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Starred):
            sources = [node.value]
        elif isinstance(node, ast.Call) and _name(node.func) in {
            "list",
            "tuple",
            "iter",
            "enumerate",
            "next",
            "map",
            "join",
            "pop",
        }:
            receiver = [node.func.value] if _name(node.func) == "pop" and isinstance(node.func, ast.Attribute) else []
            sources = receiver or list(node.args)
        lines += [node.lineno for source in sources if _is_set(source, known)]  # type: ignore[attr-defined]  # all have one
    return sorted(lines)


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_no_set_is_iterated(path: Path) -> None:
    assert iterated_sets(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "a = {1}\n[x for x in a]",
        "def f(a: set[str]): return {x: 1 for x in a}",
        "def f() -> set[int]: ...\nfor x in f(): pass",
        "a = set(b)\nlist(a | c)",
        "a: set[int] = b\na.pop()",
        "a = {1}\n[*a]",
        "class A:\n    s: set[int]\n    def f(self): return tuple(self.s)",
    ],
)
def test_the_check_sees_iterated_sets(source: str) -> None:
    assert iterated_sets(source)


@pytest.mark.parametrize(
    "source",
    [
        "for x in sorted({1, 2}): pass",
        "a = {1}\nsorted(x for x in a)",
        "any(x for x in {1})",
        "a = {1}\n1 in a",
        "{x for x in {1}}",
        "a = {}\nfor x in a: pass",
    ],
)
def test_the_check_lets_order_free_uses_pass(source: str) -> None:
    assert iterated_sets(source) == []


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_nothing_impure_is_imported(path: Path) -> None:
    """import-linter checks the same for whole packages; this one sees imports inside functions by name too."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("datetime.now", "utcnow", "perf_counter")):
            raise AssertionError(f"line {node.lineno} asks a clock")
    assert imported & FORBIDDEN == set()
    ours = {"dorm", "events"}
    libraries = {"msgspec", "numpy", "scipy", "highspy", "zstandard"}
    assert imported - ours - libraries <= set(sys.stdlib_module_names)
