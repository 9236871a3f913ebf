"""Tests of `dorm.policies`."""
