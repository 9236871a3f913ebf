"""What a failed command may have lacked."""

from __future__ import annotations

import pytest

from dorm.local.hints import hint_for
from events import kinds as k
from tests.core.fold.test_identities import trusting
from tests.core.records import document

PYTORCH = (
    "slot 0 on node-1 ended with exit code 1: raise _env_error(env_var) / ValueError: Error initializing "
    "torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"
)
"""What PyTorch 2.13 writes last, as `dorm ps` has it."""


@pytest.mark.parametrize(
    ("engine", "reason", "wanted"),
    [("plain", PYTORCH, True), ("torchrun", PYTORCH, False), ("plain", "exit code 1: RANK", False)],
)
def test_a_training_for_torchrun_that_was_run_plainly(engine: str, reason: str, wanted: bool) -> None:
    said = trusting(ann="user")
    assert said.by("ann", k.AppSubmitted(spec=document("train", engine=engine))) == ""
    said.bench.settle()
    (app,) = said.bench.state.apps.values()
    app.end_reason = reason
    assert ("--engine torchrun" in hint_for(app)) is wanted
