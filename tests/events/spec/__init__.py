"""Tests of `events.spec`."""
