"""Tests of the commands in `dorm.cli.whatif` and `dorm.cli.shadow`."""
