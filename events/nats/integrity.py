"""Checks that the stream that holds a log is whole, and configured so that no client can alter it.

Without reading the log, they verify:

* the server's own count: the first sequence is 1, or what comes before it lies in an archive (`events.nats.rotated`), and
  none is deleted or lost between it and the last,
* the configuration: it forbids delete, roll-up and expiry, and the server stores before it acknowledges.

A tail that is cut off cleanly looks like a shorter log; a master that has read more of it notices (`dorm.master.sealing`).
After a kill, a server whose files are damaged cuts the log off before the damage, and reports only how many bytes it could
not read.  A byte changed in a file of a cleanly stopped server shows only when the record is read: the server omits it, and
readers detect the gap (`LogDamaged`).  `dorm replay verify` reads all, and checks the seals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events import subjects as names
from events.log.records import LogDamaged
from events.logger import Logger
from events.nats.reader import record_at
from events.nats.rotated import Rotated
from events.nats.stream_state import checked_info
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from events.nats.link import Link

_TIMEOUT_S = 5.0
_log = Logger(__name__)
_BACK = "stop the masters, and put the server's data back from a backup, or import an archive as a new cluster"
_BACK_FROM_OTHERS = (
    "this is the copy of NATS server {name}: stop that server, move its folder of this stream away, and start it again, so "
    "that it gets a new copy from the others; if the others have lost the same, restore a backup"
)
_AROUND_A_MESSAGE = 64 * 1024
"""Bytes, more than a message needs beside its headers and its body."""
_UNLIMITED = ("max_msgs", "max_age", "max_msgs_per_subject")
_MUST_BE = {
    "retention": "limits",
    "discard": "new",
    "storage": "file",
    "deny_delete": True,
}
_MUST_NOT_BE = (
    "no_ack", "allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_counter", "mirror", "sources", "subject_transform",
)  # fmt: skip
"""Settings by which records could vanish, come from elsewhere, or be acknowledged unstored."""


async def check_stream(link: Link, cluster: str) -> None:
    """Check the stream.  Raises LogDamaged, and what nats-py raises."""
    # Without details the server does not report what it lost.
    stream = log_stream(cluster)
    info = await checked_info(link, stream, _TIMEOUT_S, deleted_details=True)
    cut = await Rotated(link, cluster, stream).cut() if info["state"].get("first_seq", 0) > 1 else None
    if trouble := missing(info["state"], archived=cut.upto if cut is not None else 0):
        raise LogDamaged(f"stream {stream} has lost records: {trouble}; {_way_back(info)}", code="log.records_lost")
    last = info["state"].get("last_seq", 0)
    if (
        last
        and await record_at(link, stream, last, _TIMEOUT_S) is None
        and not await _continues_after(link, stream, last)
    ):
        raise LogDamaged(
            f"stream {stream} has lost records: the last one, {last:,}, can't be read; {_way_back(info)}",
            code="log.records_lost",
        )
    if lost := (info["state"].get("lost") or {}).get("bytes", 0):
        replicated = info["config"].get("num_replicas", 1) > 1  # Then the others have what one could not read.
        if lost > link.client.max_payload + _AROUND_A_MESSAGE and not replicated:
            raise LogDamaged(
                f"stream {stream} has lost records: {lost:,} bytes could not be read; {_BACK}", code="log.records_lost"
            )
        # A message that was being written when its machine lost power was never acknowledged, so it is not a loss.
        _log.warning("the server could not read the end of its data when it started", stream=stream, bytes=lost)
    if changed := unprotected(info["config"], cluster):
        raise LogDamaged(
            f"stream {stream} is not configured as the log needs it: {'; '.join(changed)}; undo that with `nats stream edit`, "
            "and `dorm replay verify` shows whether a record was altered meanwhile",
            code="log.reconfigured",
        )


async def _continues_after(link: Link, stream: str, seq: int) -> bool:
    """Return whether the server has stored more since: then readers check that record."""
    state = (await checked_info(link, stream, _TIMEOUT_S))["state"]
    return bool(state.get("last_seq", 0) != seq)


def _way_back(info: dict[str, Any]) -> str:
    name = (info.get("cluster") or {}).get("leader")
    return _BACK_FROM_OTHERS.format(name=name) if info["config"].get("num_replicas", 1) > 1 and name else _BACK


def missing(state: dict[str, Any], archived: int = 0) -> str:
    """Return what is missing from a stream with this state, "" if nothing is. Records up to `archived` are in
    archives."""
    first, last = state.get("first_seq", 0), state.get("last_seq", 0)
    if first > archived + 1:
        return f"it begins at {first}" if last >= first else f"all up to {last} are gone"
    if last and (deleted := state.get("num_deleted", 0)):
        return f"{deleted:,} of {last:,} are deleted or can't be read"
    lost = state.get("lost") or {}
    if lost.get("msgs"):
        return f"the server could not read {len(lost['msgs']):,} of {last:,} when it started"
    if state.get("messages", 0) != last - max(0, first - 1):
        return f"{state.get('messages', 0):,} are there, from number {max(1, first):,} to {last:,}"
    return ""


def unprotected(config: dict[str, Any], cluster: str) -> list[str]:
    """Return the settings that do not protect the log.

    A limit of its size is not among them: the server refuses new records then, and loses none (`settings.limits`)."""
    found = [
        f"{name} is {config.get(name)!r} and not {wanted!r}"
        for name, wanted in _MUST_BE.items()
        if config.get(name) != wanted
    ]
    found += [f"{name} is set" for name in _MUST_NOT_BE if config.get(name)]
    if config.get("persist_mode") == "async":
        found.append("persist_mode is 'async'")
    if config.get("subjects") != [names.log_subjects(cluster)]:
        found.append(f"it takes {', '.join(config.get('subjects') or ['nothing'])}")
    found += [f"{name} is {config[name]}" for name in _UNLIMITED if config.get(name, -1) > 0]
    return found
