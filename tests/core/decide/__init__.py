"""Tests of `dorm.core.next_round`."""
