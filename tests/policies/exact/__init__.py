"""Tests of `dorm.policies.exact`."""
