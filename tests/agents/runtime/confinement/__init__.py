"""What containers cannot do, on a real engine."""
