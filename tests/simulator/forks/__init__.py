"""Tests of `replay.simulator.forks`."""
