"""Tests of `replay.past`."""
