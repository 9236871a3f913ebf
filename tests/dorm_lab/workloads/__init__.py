"""Tests of `dorm_lab.workloads`."""
