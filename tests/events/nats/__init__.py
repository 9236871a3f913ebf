"""Tests of `events.nats`."""
