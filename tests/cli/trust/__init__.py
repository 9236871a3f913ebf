"""Commands about identities."""
