"""Every command that README and the documentation show works as shown."""

from __future__ import annotations

import pytest

from tests.docs.session import Session
from tests.docs.shown import Page, pages, sessions
from tests.e2e.local_up import leaving_nothing

_SESSIONS = sessions()
_LONG = (
    "docs/accounting.md",
    "docs/app-contract.md",
    "docs/changing-apps.md",
    "docs/coming-from/dstack.md",
    "docs/coming-from/skypilot.md",
    "docs/simulation.md",
    "docs/sweeps.md",
    "docs/traces.md",
    "docs/tutorial.md",
    "docs/webhooks.md",
)
"""Each takes seconds of CPU, and shows commands that other tests run too."""


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "first", [pytest.param(one, marks=pytest.mark.soak) if one in _LONG else one for one in _SESSIONS]
)
async def test_commands_end_as_shown(first: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    async with leaving_nothing(tmp_path_factory.mktemp("shown")) as folder, Session(folder) as session:
        for page in _SESSIONS[first]:
            for step in page.steps():
                await session.do(step)


@pytest.mark.parametrize("page", pages().values(), ids=lambda page: page.name)
def test_commands_are_shown_in_blocks_that_are_run(page: Page) -> None:
    for block in page.blocks():
        prompts = [line for line in block.lines if line.startswith(("$ ", "dorm "))]
        if prompts and block.language != "console":
            pytest.fail(f"{page.name}:{block.line}: {prompts[0]!r} is not in a console block")
        if block.language == "console" and not block.not_run:
            assert block.lines[0].startswith("$ "), f"{page.name}:{block.line}: it does not begin with `$ `"
        assert not block.not_run or block.language == "console", f"{page.name}:{block.line}: nothing to exempt"
