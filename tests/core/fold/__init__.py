"""Tests of `dorm.core.fold`."""
