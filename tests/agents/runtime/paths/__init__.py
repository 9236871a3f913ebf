"""Where programs start and find their folders: short paths, and nothing of the runtime's next to them."""
