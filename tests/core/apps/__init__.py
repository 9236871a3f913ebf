"""Tests of `dorm.core.apps`."""
