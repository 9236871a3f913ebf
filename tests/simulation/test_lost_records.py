"""No master leads a log that lost acknowledged records; without its checks, one would, which these histories find."""

from __future__ import annotations

import pytest

from dorm.master.lease import Lease
from dorm.master.sealing import Integrity
from tests.simulation.breaking.patches import Variant, code, together
from tests.simulation.losing import Losing
from tests.simulation.world.connection import SimLog
from tests.tries import tries

_SEEDS = tries(15, 2000)


@pytest.mark.soak
def test_no_master_leads_from_a_log_that_lost_records() -> None:
    refused = 0
    for seed in range(_SEEDS):
        history = Losing(seed)
        assert history.play() == "", f"seed {seed}: {history.play()}"
        refused += history.refused
    assert refused > _SEEDS, "masters hardly ever met with it"


def _no_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dorm.master.sealing._read_place", lambda path, cluster: None)


_LEASE_SAYS_NOTHING = code(Lease._with_sighting, ("if not self._publishes_sightings:", "if True:"))
_NOBODY_LOOKS_AGAIN = code(SimLog._check_read, ("if self._reached_again and", "if False and"))

VARIANTS = {
    "whatever is altered is led": Variant(
        together(
            code(Integrity.check, ("if not altered:", "if True:")),
            code(SimLog.read, ("if last is not None:", "if False:")),
            _NOBODY_LOOKS_AGAIN,
        )
    ),
    "neither the lease nor a witness tells what was seen": Variant(together(_LEASE_SAYS_NOTHING, _no_witness)),
    "a master goes on when the log is reached again": Variant(
        together(_NOBODY_LOOKS_AGAIN, code(SimLog.read, ("if last is not None:", "if False:")))
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", VARIANTS)
def test_without_its_checks_a_master_leads_from_a_damaged_log(name: str) -> None:
    with VARIANTS[name].broken():
        assert any(Losing(seed).play() for seed in range(120))
