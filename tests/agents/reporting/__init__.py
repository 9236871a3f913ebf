"""Tests of `agents.node_status`."""
