"""One browser for all tests of a process, because starting one costs more than most of the tests.

Each test has contexts of its own (`browsing.opened`), which share nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.web.browsing import chrome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser belongs to one event loop, so the tests run in that of the session."""
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chrome() as started:
        yield started
