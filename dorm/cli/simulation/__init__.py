"""Commands that play in virtual time."""
