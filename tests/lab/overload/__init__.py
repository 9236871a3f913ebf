"""A thousand real agents, and floods: `make overload`."""
