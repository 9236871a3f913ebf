"""What containers are kept from, tried on a real engine."""
