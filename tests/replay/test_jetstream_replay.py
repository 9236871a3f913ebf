"""Replay on a live cluster's log, on a real NATS server."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.state import digest
from events.archive.segments import open_archive
from events.nats.connection import Connection
from replay.audit.audit import verify
from replay.audit.parts_checks import PartsReport
from replay.export.export import export
from replay.moments import AtSequence, BeforeEnd
from replay.travel import state_at
from tests.replay.recorded import play

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


async def test_a_live_log_is_audited_and_exported(nats_server: NatsServer, tmp_path: Path) -> None:
    name = f"replay-{secrets.token_hex(4)}"
    connection = await Connection.open(nats_server.url, name, create=True)
    live = connection.log
    try:

        async def while_it_runs() -> None:
            report = await verify(live)
            assert report.divergence is None
            assert report.decisions_checked >= 4

        await play(live, connection.bus, name, tmp_path / "cluster", then=while_it_runs)

        report = await verify(live)
        assert report.divergence is None
        assert report.not_checked == 0
        assert report.events == report.end == await live.end()

        path = tmp_path / "log.dorm"
        assert (await export(live, path)).records == report.end
        archive = await open_archive(path)
        assert report.parts.checked > 0
        assert report.parts.wrong == []
        # An archive has no parts.
        assert await verify(archive) == msgspec.structs.replace(report, parts=PartsReport())
        for moment in (AtSequence(0), AtSequence(1), AtSequence(report.end // 2), BeforeEnd(10**9), None):
            assert digest(await state_at(live, moment)) == digest(await state_at(archive, moment))
    finally:
        await connection.close()
