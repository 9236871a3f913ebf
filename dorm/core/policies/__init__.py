"""Policies by name.  To add one, implement `problem.Policy` in a module of its own and register it here."""
