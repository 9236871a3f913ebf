"""A distribution with plug-in policies, written into a folder as an installer would: a module, and its dist-info."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dorm import plugins
from dorm.plugins import finding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

MODULE = '''
"""Policies of Acme."""
import os, sys, time
import msgspec
from dorm.policies.baselines.static import StaticPolicy
from dorm.policies.problem import Allocation


class Good(StaticPolicy):
    """Two containers for each app."""
    name, version = "acme-good", 7

    def check_params(self, params):
        return super().check_params({"count": 2, **params})

    def allocate(self, problem, params):
        print("a plug-in may print")
        return super().allocate(problem, {"count": 2, **params})


class Raises(Good):
    name = "acme-raises"
    def allocate(self, problem, params):
        return 1 // 0


class Nonsense(Good):
    name = "acme-nonsense"
    def allocate(self, problem, params):
        return {"everything": "to me"}


class Types(Good):
    name = "acme-types"
    def allocate(self, problem, params):
        answer = super().allocate(problem, params)
        return msgspec.structs.replace(answer, counts={app: {"n": 1.5} for app in answer.counts}, utilization="much")


class Oversized(Good):
    name = "acme-oversized"
    def allocate(self, problem, params):
        answer = super().allocate(problem, params)
        node = problem.nodes[0].id
        counts = {app.id: {node: app.n_max * 1000} for app in problem.apps}
        return msgspec.structs.replace(answer, counts=counts)


class Loops(Good):
    name = "acme-loops"
    def allocate(self, problem, params):
        while True:
            pass


class Exits(Good):
    name = "acme-exits"
    def allocate(self, problem, params):
        sys.exit(3)


class Dies(Good):
    name = "acme-dies"
    def allocate(self, problem, params):
        os._exit(9)


class NoInterface:
    name, version = "acme-no-interface", 1
'''
WORKING = ("good", "raises", "nonsense", "types", "oversized", "loops", "exits", "dies")
ALL = {f"acme-{name}": f"acme_policies:{name.capitalize()}" for name in WORKING}


def install(folder: Path, points: Mapping[str, str], *, module: str = MODULE, name: str = "acme-dorm") -> None:
    """Write the distribution into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "acme_policies.py").write_text(module)
    info = folder / f"{name.replace('-', '_')}-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[{finding.GROUP}]\n{lines}")


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the folder on the path of this program."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    forget()


def forget() -> None:
    plugins.close()
    finding.discover.cache_clear()
    plugins.proxy._opened.clear()
