"""Tests of `replay.story`."""
