"""Tests of `dorm.client`."""
