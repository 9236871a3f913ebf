"""The contract of every archive: that of every readable log, without any way to change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.log.records import LogRefused
from tests.errors import raises
from tests.events.log.readable_conformance import ReadableConformance, records_of

if TYPE_CHECKING:
    from tests.events.log.readable_conformance import Holding


class ArchiveConformance(ReadableConformance):
    async def test_it_can_not_be_followed(self, holding: Holding) -> None:
        log = await holding(records_of(3))
        with raises(LogRefused, "log.not_growing"):
            await anext(log.read(follow=True))

    async def test_it_offers_nothing_to_write_with(self, holding: Holding) -> None:
        log = await holding(records_of(3))
        assert not hasattr(log, "append")
        assert not hasattr(log.snapshots, "put")
        assert not hasattr(log.snapshots, "drop")
