"""Tests of `replay.simulator.compare`."""
