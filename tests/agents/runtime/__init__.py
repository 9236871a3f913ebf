"""Tests of `agents.runtime`."""
