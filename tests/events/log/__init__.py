"""Tests of `events.log`."""
