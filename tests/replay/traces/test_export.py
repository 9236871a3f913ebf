"""Traces reach a real receiver, which decodes them; a failing receiver is retried, and a refusal is an error."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from replay.export.export import export
from replay.traces import Receiver, TraceError, as_json, as_protobuf, cluster_of, export_spans, traces_url
from tests.e2e.commands import done, refused
from tests.errors import raises
from tests.replay.made_log import CLUSTER, log_of, two_apps
from tests.replay.traces.test_spans import spans_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from replay.traces import Span


class Collector:
    """What an OpenTelemetry collector does with OTLP over HTTP."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []

    async def __aenter__(self) -> Collector:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        status = self._answers.pop(0) if self._answers else 200
        if status != 200:
            return web.Response(status=status)
        assert request.headers["Content-Type"] == "application/x-protobuf"
        body = await request.read()  # aiohttp undoes the compression.
        found = ExportTraceServiceRequest()
        found.ParseFromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        self.requests.append(found)
        self.headers.append(dict(request.headers))
        return web.Response(content_type="application/x-protobuf")

    def spans(self) -> list[Any]:
        return [
            span
            for one in self.requests
            for part in one.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]


def check(found: list[Any], spans: list[Span]) -> None:
    assert [one.span_id.hex() for one in found] == [one.span for one in spans]
    assert [one.trace_id.hex() for one in found] == [one.trace for one in spans]
    assert [one.parent_span_id.hex() for one in found] == [one.parent for one in spans]
    assert [(one.start_time_unix_nano, one.end_time_unix_nano) for one in found] == [
        (one.begin, one.end) for one in spans
    ]
    assert [one.name for one in found] == [one.name for one in spans]
    assert [one.status.message for one in found] == [one.error for one in spans]
    assert [one.status.code for one in found] == [2 if one.error else 0 for one in spans]
    for have, span in zip(found, spans, strict=True):
        made = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in have.attributes}
        assert made == span.attributes


async def test_a_log_at_a_receiver() -> None:
    story = two_apps()
    expected = spans_of(story.records, cluster=CLUSTER)
    async with Collector() as collector, Receiver(collector.url, CLUSTER, headers={"api-key": "k"}) as receiver:
        count = await export_spans(log_of(story.records), CLUSTER, receiver.send)
    assert count == len(expected) > 5
    check(collector.spans(), expected)
    assert collector.headers[0]["api-key"] == "k"
    resource = collector.requests[0].resource_spans[0].resource
    assert {one.key: one.value.string_value for one in resource.attributes}["service.name"] == "dorm"


async def test_a_failing_receiver_is_retried_and_a_refusal_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("replay.traces._FIRST_S", 0.01)
    spans = spans_of(two_apps().records)
    async with Collector(503, 429) as collector, Receiver(collector.url, "c") as receiver:
        await receiver.send(spans)
        check(collector.spans(), spans)
    async with Collector(401) as collector, Receiver(collector.url, "c") as receiver:
        with raises(TraceError, "traces.receiver.refused", "401"):
            await receiver.send(spans)
    async with Receiver(collector.url, "c", patience_s=0.05) as receiver:
        with raises(TraceError, "traces.receiver.unavailable", collector.url):
            await receiver.send(spans)


async def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.traces.BATCH", 2)
    sizes: list[int] = []

    async def send(spans: list[Span]) -> None:
        sizes.append(len(spans))

    count = await export_spans(log_of(two_apps().records), "c", send)
    assert sum(sizes) == count
    assert max(sizes) == 2


def test_json_and_protobuf_agree() -> None:
    spans = spans_of(two_apps().records)
    message = ExportTraceServiceRequest()
    message.ParseFromString(as_protobuf("c", spans))
    check(list(message.resource_spans[0].scope_spans[0].spans), spans)
    document = json.loads(as_json("c", spans))
    shown = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [one["spanId"] for one in shown] == [one.span for one in spans]
    assert all(isinstance(one["startTimeUnixNano"], str) for one in shown)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/otlp/v1/traces", "https://a/otlp/v1/traces"),
    ],
)
def test_addresses(url: str, whole: str) -> None:
    assert traces_url(url) == whole


def test_an_address_of_no_receiver_is_refused() -> None:
    with raises(TraceError, "traces.url.malformed"):
        traces_url("a:4318")


async def test_the_command_exports_an_archive(tmp_path: Path) -> None:
    story = two_apps()
    path = tmp_path / "log.dorm"
    await export(log_of(story.records), path)
    assert await cluster_of(log_of(story.records)) == CLUSTER
    expected = spans_of(story.records, cluster=CLUSTER)
    async with Collector() as collector:
        out = await done(tmp_path, "export", "traces", "--file", str(path), "--otlp", collector.url)
        check(collector.spans(), expected)
    assert f"{len(expected)} spans are in {collector.url}" in out
    into = tmp_path / "otlp.json"
    await done(
        tmp_path, "export", "traces", "--file", str(path), "-o", str(into), "--since", str(len(story.records) // 2)
    )
    lines = [json.loads(line) for line in into.read_text().splitlines()]
    spans = [one for line in lines for one in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert [one["spanId"] for one in spans] == [one.span for one in expected][-len(spans) :]
    assert 0 < len(spans) < len(expected)
    assert "otlp" in await refused(tmp_path, "export", "traces", "--file", str(path), code=2)


async def test_following_hands_on_each_span_as_it_ends() -> None:
    story = two_apps()
    log = log_of(story.records[: len(story.records) // 2])
    expected = spans_of(story.records)
    found: list[Span] = []
    more = asyncio.Event()

    async def send(spans: list[Span]) -> None:
        found.extend(spans)
        more.set()

    task = asyncio.create_task(export_spans(log, "c", send, follow=True))
    try:
        async with asyncio.timeout(20):
            await more.wait()
            assert 0 < len(found) < len(expected)
            for record in story.records[len(story.records) // 2 :]:
                await log.append(record.subject, record.body, msg_id=record.msg_id)
            while len(found) < len(expected):
                more.clear()
                await more.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [one.name for one in found] == [one.name for one in expected]
