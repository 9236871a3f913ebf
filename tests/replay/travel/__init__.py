"""Tests of `replay.travel`."""
