"""Tests of the commands in `dorm.cli.agent`."""
