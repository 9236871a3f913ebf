"""The contract of every store of nodes' parts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from events.log.records import Overtaken

if TYPE_CHECKING:
    from events.log.stores import Parts

PATIENCE_S = 20.0


class PartsConformance:
    """Subclasses give a fixture `parts`: an empty store."""

    async def test_a_store_begins_empty(self, parts: Parts) -> None:
        assert await parts.all() == []
        assert await parts.last("n1") is None

    async def test_each_node_has_its_last_part(self, parts: Parts) -> None:
        first = await parts.put("n1", b"one", 0)
        await parts.put("n2", b"other", 0)
        second = await parts.put("n1", b"two", first)
        assert second > first
        assert [(part.node, part.body) for part in await parts.all()] == [("n1", b"two"), ("n2", b"other")]
        last = await parts.last("n1")
        assert last is not None
        assert (last.revision, last.body) == (second, b"two")

    async def test_a_part_is_replaced_only_by_a_writer_that_knows_its_revision(self, parts: Parts) -> None:
        first = await parts.put("n1", b"one", 0)
        await parts.put("n1", b"two", first)
        for stale in (0, first):
            with pytest.raises(Overtaken):
                await parts.put("n1", b"old", stale)
        last = await parts.last("n1")
        assert last is not None
        assert last.body == b"two"

    async def test_a_follower_gets_its_part_and_each_replacement(self, parts: Parts) -> None:
        revision = await parts.put("n1", b"one", 0)
        await parts.put("n2", b"other", 0)
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(parts.follow("n1")) as followed:
            assert (await anext(followed)).body == b"one"
            await parts.put("n1", b"two", revision)
            assert (await anext(followed)).body == b"two"

    async def test_a_part_may_be_larger_than_a_message(self, parts: Parts) -> None:
        large = [bytes([number]) * 1_500_000 for number in (1, 2)]
        revision = await parts.put("n1", large[0], 0)
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(parts.follow("n1")) as followed:
            assert (await anext(followed)).body == large[0]
            revision = await parts.put("n1", large[1], revision)
            assert (await anext(followed)).body == large[1]
            await parts.put("n1", b"small", revision)
            assert (await anext(followed)).body == b"small"
        assert [part.body for part in await parts.all()] == [b"small"]
