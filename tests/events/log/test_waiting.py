"""Who waits for a log asks again until it answers, and takes a refusal as one."""

from __future__ import annotations

import pytest
import structlog

from events.log.records import LogClosed, LogError, LogRefused, LogUnavailable, NotSent, until_answered


def answers(*said: Exception | int) -> tuple[list[Exception | int], object]:
    left = list(said)

    async def ask() -> int:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return left, ask


async def test_a_silent_server_is_asked_again() -> None:
    left, ask = answers(LogUnavailable("a"), NotSent("b"), 7)
    assert await until_answered(ask, "testing") == 7  # type: ignore[arg-type]
    assert left == []


@pytest.mark.parametrize("error", [LogRefused("no"), LogClosed("over")])
async def test_permanent_failures_are_not_retried(error: LogError) -> None:
    left, ask = answers(LogUnavailable("a"), error, 7)
    with pytest.raises(type(error)):
        await until_answered(ask, "testing")  # type: ignore[arg-type]
    assert left == [7]


async def test_waits_are_announced_with_their_reason_and_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.log.records._SAY_AFTER_S", 0.0)
    structlog.configure(processors=[structlog.testing.LogCapture()])
    _, ask = answers(LogUnavailable("nats://h:1 is silent"), 7)
    with structlog.testing.capture_logs() as said:
        await until_answered(ask, "testing")  # type: ignore[arg-type]
    assert [(line["event"], line["doing"]) for line in said] == [
        ("waiting for the log", "testing"),
        ("the log answers", "testing"),
    ]
    assert said[0]["reason"] == "nats://h:1 is silent"
