"""Tests of `dorm.policies.baselines`."""
