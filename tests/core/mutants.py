"""Breaking the core on purpose: a module's functions with one piece of their source replaced."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    import pytest


def mutate(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replace the module's functions and private classes, and its tables of functions, by those of the changed source."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has {source.count(old)} of {old!r}"
    tree = ast.parse(source.replace(old, new))
    parts = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name.startswith("_"))
    ]
    names = {part.name for part in parts}
    tables = [node for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)]
    names |= {table.target.id for table in tables if isinstance(table.target, ast.Name)}
    tree.body = [node for node in tree.body if isinstance(node, ast.ImportFrom) or node in (*parts, *tables)]
    changed: dict[str, Any] = dict(vars(module))
    exec(compile(tree, f"<mutant of {module.__name__}>", "exec"), changed)
    for name in sorted(names):
        patch.setattr(module, name, changed[name])


def mutate_method(patch: pytest.MonkeyPatch, owner: type, name: str, old: str, new: str) -> None:
    """Replace one method by its changed source."""
    method = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(method))
    assert source.count(old) == 1, f"{owner.__name__}.{name} has {source.count(old)} of {old!r}"
    changed: dict[str, Any] = dict(vars(inspect.getmodule(owner)))
    exec(
        compile("from __future__ import annotations\n" + source.replace(old, new), f"<mutant {name}>", "exec"), changed
    )
    patch.setattr(owner, name, changed[name])
