"""Tests of `dorm.local`."""
