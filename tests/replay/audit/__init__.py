"""Tests of `replay.audit`."""
