"""Tests of `dorm.core.faults`."""
