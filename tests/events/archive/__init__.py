"""Tests of `events.archive`."""
