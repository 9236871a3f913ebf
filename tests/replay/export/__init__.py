"""Tests of `replay.export`."""
