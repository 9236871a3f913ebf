"""Spans in OTLP, OpenTelemetry's protocol: as JSON without any library, as protobuf by `opentelemetry-proto`.

TraceError   the library is missing, or the receiver does not accept the spans
"""

from __future__ import annotations

import base64
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.traces.spans import Span, Value

BATCH = 512
"""Spans of one request."""
_INTERNAL, _ERROR = 1, 2
"""Kind of a span, and status, as the protocol numbers them."""


class TraceError(ReplayError):
    """Spans cannot be exported."""

    code = "traces.failed"


def as_json(cluster: str, spans: Sequence[Span]) -> bytes:
    """Return one request as a line of JSON."""
    return msgspec.json.encode(request(cluster, spans)) + b"\n"


def request(cluster: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return one request as the protocol's JSON has it: ids in hex, 64-bit integers as text."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": "dorm", "service.namespace": cluster})},
                "scopeSpans": [
                    {"scope": {"name": "dorm", "version": version("dorm")}, "spans": [_span(one) for one in spans]}
                ],
            }
        ]
    }


def _span(one: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": one.trace,
        "spanId": one.span,
        "name": one.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(one.begin),
        "endTimeUnixNano": str(one.end),
        "attributes": _attributes(one.attributes),
    }
    if one.parent:
        made["parentSpanId"] = one.parent
    if one.error:
        made["status"] = {"code": _ERROR, "message": one.error}
    return made


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def as_protobuf(cluster: str, spans: Sequence[Span]) -> bytes:
    """Return one request in protobuf.  Raises TraceError if the extra `otel` is not installed."""
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise TraceError(
            "sending traces needs opentelemetry-proto: pip install 'dorm[otel]'; `dorm export traces -o FILE` needs nothing",
            code="package.missing",
        ) from None
    document = request(cluster, spans)
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for field in ("traceId", "spanId", "parentSpanId"):
            if field in span:  # Protobuf's own JSON has bytes in base64, the protocol's has ids in hex.
                span[field] = base64.b64encode(bytes.fromhex(span[field])).decode()
    encoded: bytes = ParseDict(document, ExportTraceServiceRequest()).SerializeToString()
    return encoded


def rejected(answer: bytes) -> str:
    """Return the text of a receiver's answer about rejected spans, "" if it accepted all."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    found = ExportTraceServiceResponse()
    try:
        found.ParseFromString(answer)
    except DecodeError:
        return ""
    partial = found.partial_success
    return f"{partial.rejected_spans} spans: {partial.error_message[:200]}" if partial.rejected_spans else ""
