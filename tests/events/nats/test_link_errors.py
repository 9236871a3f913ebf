"""What the answers of NATS servers mean for an append: whether to try again, and whether it may be stored."""

from __future__ import annotations

import pytest
from nats.js.errors import APIError

from events.log.records import LogError, LogFull, LogRefused, LogUnavailable, Overtaken
from events.nats.link import log_error


@pytest.mark.parametrize(
    ("code", "err_code", "description", "means"),
    [
        (503, 10008, "JetStream system temporarily unavailable", LogUnavailable),
        # The repeat of an append came to a leader that has the first one and not yet stored it.  It may come to nothing.
        (409, 10158, "duplicate message id is in process", LogUnavailable),
        (500, 10999, "a fault of the server", LogUnavailable),
        (503, 10077, "raft: could not store", LogUnavailable),
        (503, 10077, "maximum bytes exceeded", LogFull),
        (503, 10023, "insufficient resources", LogFull),
        (503, 10039, "JetStream not enabled for account", LogRefused),
        (400, 10071, "wrong last sequence: 5", Overtaken),
        (400, 10060, "expected stream does not match", LogRefused),
    ],
)
def test_answers(code: int, err_code: int, description: str, means: type[LogError]) -> None:
    assert type(log_error(APIError(code=code, err_code=err_code, description=description), "append")) is means
