"""Tests of `events.nats.settings`."""
