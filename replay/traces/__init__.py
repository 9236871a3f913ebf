"""A log as traces in OpenTelemetry's model: one trace for each app, a span for each phase.

spans    pure: from a fold to finished spans.  Start here
otlp     spans as OTLP: JSON, and protobuf if the extra `otel` is installed
sending  OTLP over HTTP
follow   reads a log and passes on its spans in batches

A span is passed on when its phase has ended, with the phase's own times, since backends do not take spans that are open for
hours.  Its ids are hashes over the log's content, so the same phase has the same ids whenever and wherever it is
exported.
"""
