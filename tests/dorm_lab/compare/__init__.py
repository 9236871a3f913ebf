"""Tests of `dorm_lab.compare`."""
