"""Tests of `dorm.api`: a real server on a log on a real NATS server."""
