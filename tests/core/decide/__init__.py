"""Tests of `dorm.core.decide`."""
