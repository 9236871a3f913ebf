"""Tests of `agents.status`."""
