"""Tests of `replay.traces`."""
