"""The state that a server reports of a stream, accepted only if the server leads a majority.

On several servers, a leader that was cut off answers as if it still led: for about ten seconds, and again for a while
when it is back. It can be recognized by its peers, which it has not heard for long.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import nats.js.errors

from events.log.records import LogUnavailable

if TYPE_CHECKING:
    from events.nats.link import Link

_HEARD_NS = 4_000_000_000
"""Nanoseconds; peers exchange messages once a second."""


async def api_request(link: Link, what: str, question: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Send a JetStream API request by hand, to get the whole answer.  Raises what nats-py raises."""
    reply = await link.client.request(f"{link.api}.{what}", json.dumps(question).encode(), timeout=timeout)
    answer: dict[str, Any] = json.loads(reply.data)
    if error := answer.get("error"):
        raise nats.js.errors.APIError.from_error(error)
    return answer


async def checked_info(link: Link, stream: str, timeout: float, **more: bool) -> dict[str, Any]:
    """Return a stream's configuration and state.  Raises LogUnavailable if the answering server reaches no majority,
    and the errors of nats-py."""
    info = await api_request(link, f"STREAM.INFO.{stream}", more, timeout)
    if not leads(info):
        raise LogUnavailable(
            f"stream {stream}: the server that answers for it has lost sight of the others; try again",
            code="log.behind",
        )
    return info


async def stream_state(link: Link, stream: str, timeout: float) -> dict[str, Any]:
    """Return `first_seq`, `last_seq` and so on.  Raises as `checked_info`."""
    state: dict[str, Any] = (await checked_info(link, stream, timeout))["state"]
    return state


def leads(info: dict[str, Any]) -> bool:
    """Return whether the answering server can reach a majority of the stream's servers, including itself."""
    replicas = info["config"].get("num_replicas", 1)
    if replicas <= 1:
        return True
    peers = (info.get("cluster") or {}).get("replicas") or []
    heard = sum(1 for peer in peers if not peer.get("offline") and peer.get("active", 0) < _HEARD_NS)
    return bool(2 * (heard + 1) > replicas)
