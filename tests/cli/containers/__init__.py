"""Commands that go into containers."""
