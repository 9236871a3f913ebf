"""Messages of sessions."""
