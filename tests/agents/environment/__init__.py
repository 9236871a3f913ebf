"""Environments, which are built before an app's command runs."""
