"""Tests of `dorm.webhooks`, against a real log and a real receiver."""
