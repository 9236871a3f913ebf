"""Installed plug-in policies: working ones, failing ones, and that a failure harms nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dorm import plugins
from dorm.plugins import limits
from dorm.policies import registry
from dorm.policies.parameters import ParameterError
from dorm.policies.problem import PolicyFailure, Problem
from tests.plugins import acme
from tests.policies.problems import app, node

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = Problem((node("n1", 8, 8), node("n2", 8, 8)), (app("a", 1, 1, (1, 4)), app("b", 1, 1, (1, 4))))


def test_a_plug_in_answers_as_any_policy(installed: Path) -> None:
    good = registry.policy("acme-good")
    answer = good.allocate(PROBLEM, {})
    assert (good.version, [sum(counts.values()) for counts in answer.counts.values()]) == (7, [2, 2])
    assert answer == registry.policy("static").allocate(PROBLEM, {"count": 2}), (
        "the answer passes two processes unchanged"
    )
    assert good.check_params({})["count"] == 2


def test_its_parameters_are_its_own(installed: Path) -> None:
    with pytest.raises(ParameterError, match=r"acme-good.*unknown parameter"):
        registry.policy("acme-good").check_params({"colour": 1})


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("acme-raises", "policy.raised", r"ZeroDivisionError.*\(acme_policies.py:\d+\)"),
        ("acme-nonsense", "policy.nonsense", "a dict, not with a Allocation"),
        ("acme-types", "policy.nonsense", "malformed"),
        ("acme-exits", "policy.ended", "SystemExit: 3"),
        ("acme-dies", "policy.ended", "ended with code 9"),
    ],
)
def test_each_failure_is_one_line_with_a_code(installed: Path, name: str, code: str, text: str) -> None:
    bad = registry.policy(name)
    for _ in range(2):  # Its process is started again.
        with pytest.raises(PolicyFailure, match=text) as failure:
            bad.allocate(PROBLEM, {})
        assert failure.value.code == code
        assert "\n" not in str(failure.value)
    assert registry.policy("acme-good").allocate(PROBLEM, {}).counts["a"], "the others answer as before"


def test_a_policy_that_never_answers_is_ended(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_given", [1.0])
    with pytest.raises(PolicyFailure, match="longer than 1 s") as failure:
        registry.policy("acme-loops").allocate(PROBLEM, {})
    assert failure.value.code == "policy.too_slow"


def test_a_process_ends_with_its_owner_in_every_state(installed: Path) -> None:
    code = (
        "import os, threading\n"
        "from dorm.policies.registry import policy\n"
        "from tests.plugins.test_plugins import PROBLEM\n"
        "one = policy('acme-loops')\n"
        "threading.Thread(target=one.allocate, args=(PROBLEM, {}), daemon=True).start()\n"
        "print(one._process._process.pid, flush=True)\n"
        "os.read(0, 1)\n"
        "os._exit(0)\n"
    )
    path = os.pathsep.join([str(installed), os.getcwd()])
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    watched = os.pidfd_open(pid)
    owner.kill()
    owner.communicate()
    try:
        import select

        ended, _, _ = select.select([watched], [], [], 30)
        assert ended, "the plug-in's process is still there"
    finally:
        os.close(watched)


def test_built_in_names_and_shared_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"dorm": "acme_policies:Good", "shared": "acme_policies:Good", "Bad Name": "acme_policies:Good"}
    acme.install(tmp_path / "one", points)
    acme.install(tmp_path / "two", {"shared": "acme_policies:Raises"}, name="other")
    acme.use(tmp_path / "one", monkeypatch)
    acme.use(tmp_path / "two", monkeypatch)
    found = plugins.discover()
    assert plugins.names() == []
    assert "one of Dorm's own" in found["dorm"].problem
    assert "acme-dorm 1.2.0, other 1.2.0" in found["shared"].problem
    assert "is not a policy name" in found["Bad Name"].problem
    assert type(registry.policy("dorm")).__module__ == "dorm.policies.dorm.optimizer"
    acme.forget()


def test_a_plug_in_that_fails_to_load_breaks_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "acme-good": "acme_policies:Good",
        "acme-missing": "acme_policies:Nothing",
        "acme-no-module": "acme_nowhere:Good",
        "acme-no-interface": "acme_policies:NoInterface",
        "acme-renamed": "acme_policies:Good",
        "acme-leaves": "acme_leaves:Good",
    }
    folder = tmp_path / "site"
    acme.install(folder, points)
    (folder / "acme_leaves.py").write_text("raise SystemExit('no')\n")
    acme.use(folder, monkeypatch)
    announced, problems = plugins.loadable()
    assert [(one.name, one.version, one.plugin) for one in announced] == [("acme-good", 7, "acme-dorm 1.2.0")]
    assert announced[0].defaults["count"] == 2
    texts = dict(zip(sorted(set(points) - {"acme-good"}), problems, strict=True))
    assert all("acme-dorm 1.2.0" in text and "\n" not in text for text in problems)
    assert "AttributeError" in texts["acme-missing"]
    assert "ModuleNotFoundError" in texts["acme-no-module"]
    assert "check_params" in texts["acme-no-interface"]
    assert "that of the entry point" in texts["acme-renamed"]
    assert "SystemExit: no" in texts["acme-leaves"]
    with pytest.raises(registry.UnknownPolicy, match="acme-missing"):
        registry.policy("acme-missing")
    acme.forget()
