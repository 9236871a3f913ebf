"""The store of shipped folders on NATS JetStream: a stream beside the log's, which keeps the last message of each subject.

    dorm.<cluster>.file.<tenant>.<hash>    a blob, compressed
    dorm.<cluster>.file._.limits           what the cluster takes; `_` is not a tenant's name

A server decides by subject who may write and read (`dorm.security.roles`).  So all questions name their subject: a blob is
fetched by `DIRECT.GET.<stream>.<subject>`, and a listing is a consumer that is created for the subjects of one tenant.  What
names subjects in its body instead, as STREAM.INFO can, would show a user the blobs of others, and is never asked for here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    StorageType,
    StreamConfig,
    StreamConsumerLimits,
)

from events import subjects as names
from events.log.files import EVERYONE, Files, StoredBlob
from events.log.records import LogDamaged, LogFull, LogRefused, LogUnavailable, Overtaken
from events.nats.link import as_log_errors
from events.nats.reader import nanoseconds, status_of
from events.nats.settings.limits import FILES_BYTES, LARGEST_FILE
from events.nats.stream_state import api_request
from events.workdir.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.js.api import ConsumerInfo

    from events.nats.link import Link

_TIMEOUT_S = 10.0
_BATCH = 4096
_UNUSED_S = 60.0
_LONGEST_UNUSED_S = 600.0
"""Seconds after which an unused consumer ends, whatever it asked for."""
_OF_ALL, _LIMITS = "_", "limits"
_decode = msgspec.json.Decoder(Limits).decode


def files_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have: those start with `DORM-`."""
    return f"DORM_files-{cluster}"


def files_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=files_stream(cluster),
        subjects=[names.file(cluster, "*", "*")],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=FILES_BYTES,
        max_msgs_per_subject=1,
        max_msg_size=LARGEST_FILE,
        allow_direct=True,
        consumer_limits=StreamConsumerLimits(inactive_threshold=_LONGEST_UNUSED_S),
    )


class JetStreamFiles(Files):
    """The shipped folders of one cluster."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster
        self._stream = files_stream(cluster)

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        await self._publish(names.file(self._cluster, tenant, name), body)

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        found = await self._last(names.file(self._cluster, tenant, name))
        return found if found is not None and found[0] else None

    async def listed(self, tenant: str = EVERYONE) -> list[StoredBlob]:
        await self._link.connected(_TIMEOUT_S)
        with self._errors("listing shipped folders"):
            found = await _Listing(self._link, self._stream, names.file(self._cluster, tenant, "*")).read()
        return sorted(blob for blob in found if blob.tenant != _OF_ALL)

    async def remove(self, blob: StoredBlob) -> None:
        await self._link.connected(_TIMEOUT_S)
        question = {"filter": names.file(self._cluster, blob.tenant, blob.name), "seq": blob.seq + 1}
        with self._errors("removing a part of a shipped folder"):
            await api_request(self._link, f"STREAM.PURGE.{self._stream}", question, _TIMEOUT_S)

    async def give_up(self, blob: StoredBlob) -> None:
        try:
            await self._publish(names.file(self._cluster, blob.tenant, blob.name), b"", after=blob.seq)
        except Overtaken:
            return  # It was stored again.

    async def limits(self) -> Limits:
        found = await self._last(names.file(self._cluster, _OF_ALL, _LIMITS))
        try:
            return _decode(found[0]) if found is not None else Limits()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Limits()  # Of a later release, or of an author of nonsense.

    async def set_limits(self, limits: Limits) -> None:
        await self._publish(names.file(self._cluster, _OF_ALL, _LIMITS), msgspec.json.encode(limits))

    async def _publish(self, subject: str, body: bytes, *, after: int | None = None) -> None:
        """Store a message, with `after` only if that is the sequence of the last one on its subject."""
        expected = {"Nats-Expected-Last-Subject-Sequence": str(after)} if after is not None else {}
        self._link.check_size(body, len(self._stream), LARGEST_FILE)
        await self._link.connected(_TIMEOUT_S)
        with self._errors("storing a part of a folder"):
            await self._link.jetstream().publish(
                subject, body, timeout=_TIMEOUT_S, headers={"Nats-Expected-Stream": self._stream, **expected}
            )

    async def _last(self, subject: str) -> tuple[bytes, int] | None:
        """Return the last message on a subject, from any server of the stream, and when it was stored."""
        await self._link.connected(_TIMEOUT_S)
        with self._errors("reading a part of a folder"):
            reply = await self._link.client.request(
                f"{self._link.api}.DIRECT.GET.{self._stream}.{subject}", b"", timeout=_TIMEOUT_S
            )
        headers = reply.headers or {}
        if "Status" in headers:
            return None
        return reply.data, nanoseconds(headers["Nats-Time-Stamp"])

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn errors of nats-py into this project's, with what to do about a store that is missing or full."""
        try:
            with as_log_errors(doing):
                try:
                    yield
                except (nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError):
                    raise LogRefused(
                        f"cluster {self._cluster} has no store for shipped folders, or it is starting; an admin makes it by "
                        "running `dorm init` again",
                        code="files.no_store",
                    ) from None
        except LogDamaged:
            raise LogRefused(
                f"cluster {self._cluster} has no store for shipped folders; an admin makes it by running `dorm init` again",
                code="files.no_store",
            ) from None
        except LogFull:
            raise LogFull(
                "the cluster's store for shipped folders is full; an operator sees in `dorm files` who takes how much, and "
                "makes room with `dorm files purge`",
                code="files.full",
            ) from None


class _Listing:
    """One consumer that lists messages without their bodies."""

    def __init__(self, link: Link, stream: str, pattern: str) -> None:
        self._link = link
        self._stream = stream
        self._pattern = pattern
        self._inbox = link.client.new_inbox()
        # Chosen here, so that it can be deleted even if the answer to its creation is lost.
        self._name = self._inbox.rsplit(".", 1)[-1]
        self._found: list[StoredBlob] = []
        self._news = asyncio.Event()
        self._broken = ""

    async def read(self) -> list[StoredBlob]:
        """Raises what nats-py raises, and LogUnavailable."""
        subscription = await self._link.take(self._inbox, self._take)
        try:
            made = await self._create()
            expected = made.num_pending or 0
            while len(self._found) < expected and not self._broken:
                await self._ask(min(_BATCH, expected - len(self._found)))
            if self._broken:
                raise LogUnavailable(f"listing shipped folders: {self._broken}; try again")
            return self._found
        finally:
            with contextlib.suppress(nats.errors.Error):
                await self._link.leave(subscription)
                # Not awaited: an unused consumer ends by itself.
                await self._link.client.publish(f"{self._link.api}.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    async def _create(self) -> ConsumerInfo:
        return await self._link.jetstream(timeout=_TIMEOUT_S).add_consumer(
            self._stream,
            ConsumerConfig(
                name=self._name,
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.NONE,
                headers_only=True,
                mem_storage=True,
                num_replicas=1,
                inactive_threshold=_UNUSED_S,
                filter_subject=self._pattern,
            ),
        )

    async def _ask(self, batch: int) -> None:
        """Request this many messages, and wait until they have arrived."""
        wanted = len(self._found) + batch
        question = json.dumps({"batch": batch, "expires": int(_TIMEOUT_S * 1e9)}).encode()
        await self._link.client.publish(
            f"{self._link.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}", question, reply=self._inbox
        )
        async with asyncio.timeout(_TIMEOUT_S):
            while len(self._found) < wanted and not self._broken:
                self._news.clear()
                await self._news.wait()

    def _take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        del body
        # $JS.ACK.<stream>.<consumer>.<tries>.<seq>.<delivered>.<time>.<pending>, or with a domain and an account in front.
        parts = reply.split(b".")
        tokens = subject.decode(errors="replace").split(".")
        if len(parts) < 9 or len(tokens) != 5:
            self._broken = " ".join(status_of(header)[:2]).strip() or "an answer that is none"
        else:
            at = 5 if len(parts) == 9 else 7
            size = status_of(header)[2].get("Nats-Msg-Size", "0") if header else "0"
            time, seq = int(parts[at + 2]), int(parts[at])
            self._found.append(StoredBlob(tokens[3], tokens[4], int(size), time, seq, len(header)))
        self._news.set()
