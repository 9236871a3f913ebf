"""Machines, engines, servers, disks and browsers for tests."""
