"""Tests of `dorm.core.query`."""
