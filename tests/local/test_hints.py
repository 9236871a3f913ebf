"""What a failed command may have lacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.hints import hint_for
from events import kinds as k
from tests.core.fold.test_identities import trusting
from tests.core.records import document

if TYPE_CHECKING:
    from dorm.core.state import App

PYTORCH = (
    "slot 0 on node-1 ended with exit code 1: raise _env_error(env_var) / ValueError: Error initializing "
    "torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"
)
"""What PyTorch 2.13 writes last, as `dorm ps` has it."""


def failed(reason: str, **fields: Any) -> App:
    said = trusting(ann="user")
    assert said.by("ann", k.AppSubmitted(spec=document("train", **fields))) == ""
    said.bench.settle()
    (app,) = said.bench.state.apps.values()
    app.end_reason = reason
    return app


@pytest.mark.parametrize(
    ("engine", "reason", "wanted"),
    [("plain", PYTORCH, True), ("torchrun", PYTORCH, False), ("plain", "exit code 1: RANK", False)],
)
def test_a_hint_names_torchrun_for_its_training_scripts(engine: str, reason: str, wanted: bool) -> None:
    assert ("--engine torchrun" in hint_for(failed(reason, engine=engine))) is wanted


def test_a_hint_names_more_memory() -> None:
    reason = "slot 0 on node-1 ran out of memory"
    app = failed(reason, demand={"cpu": 1, "memory": "128MiB"})
    assert hint_for(app).startswith("a container may use 128 MiB of memory: --memory ")
    assert hint_for(failed(reason, demand={"cpu": 1})) == ""


def test_a_hint_names_requirements_for_a_missing_module() -> None:
    reason = "slot 0 on node-1 ended with exit code 1: ModuleNotFoundError: No module named 'einops'"
    assert "--requirements FILE" in hint_for(failed(reason))
    assert hint_for(failed("slot 0 on node-1 ended with exit code 1: ImportError")) == ""
