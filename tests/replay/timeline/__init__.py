"""Tests of `replay.timeline`."""
