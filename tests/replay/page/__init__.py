"""What the dashboard shows."""
