"""Tests of `dorm.metrics`, and of the alert rules and the dashboard that use them."""
