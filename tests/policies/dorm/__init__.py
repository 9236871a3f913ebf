"""Tests of `dorm.policies.dorm`."""
