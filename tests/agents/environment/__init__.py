"""Environments: what is built before an app's command runs."""
