"""The private engine that tests fall back to is shared by all who need it, and gone after the last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from compose.engine import Engine
from tests.lab.machines.dockerd import answers, why_not
from tests.lab.machines.engines import docker_engine, unavailable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.docker
async def test_all_callers_share_one_private_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not():
        unavailable(reason)
    monkeypatch.setenv("DORM_TEST_ENGINE", "private")
    async with docker_engine(tmp_path) as first:
        async with docker_engine(tmp_path) as second:
            assert first == second
        async with Engine(first) as engine:
            assert await engine.architecture()
    async with asyncio.timeout(30):
        while await answers(first):  # noqa: ASYNC110  (the guard is nobody's to wait for)
            await asyncio.sleep(0.02)
    async with docker_engine(tmp_path) as third:
        assert third != first
        assert await answers(third)


def test_a_missing_engine_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no engine"):
        unavailable("no engine")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no engine"):
        unavailable("no engine")
