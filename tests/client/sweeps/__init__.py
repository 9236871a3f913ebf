"""Tests of `dorm.client.sweeps`."""
