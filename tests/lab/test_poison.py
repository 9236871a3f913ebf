"""No pill ends a master, an agent or a reader, and an uninvolved app completes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.ports import own_ports
from tests.lab.poison import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.nats
@pytest.mark.timeout(600)
@pytest.mark.parametrize("each", [pytest.param(1, marks=pytest.mark.soak), 12])
async def test_a_cluster_survives_every_poison_message(tmp_path: Path, each: int) -> None:
    figures = await run(tmp_path, own_ports(), each)
    assert (figures.masters_ended, figures.agents_ended, figures.readers_ended) == (0, 0, 0)
    assert (figures.witness, figures.steps) == ("completed", 7)
    assert figures.divergence == ""
    assert figures.elections == 1, "nobody was deposed"
    assert figures.poison_pills > 10_000 / each
    assert figures.unreadable > 1000 / each
