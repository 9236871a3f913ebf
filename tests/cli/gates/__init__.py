"""Commands about when apps may run, on real clusters."""
