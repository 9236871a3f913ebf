"""Tests of `dorm_lab.policies.baselines`."""
