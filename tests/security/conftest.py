"""One guarded server for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.security.hostile import Guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("guarded"))
    await server.start()
    yield server
    server.stop()
