"""Tests of `dorm.master`."""
