"""Tests of `replay.simulator.workloads`."""
