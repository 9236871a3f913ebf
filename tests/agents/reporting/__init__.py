"""Tests of `agents.reporting`."""
