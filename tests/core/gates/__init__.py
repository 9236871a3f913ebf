"""What keeps an app from running: in single tests, and in histories of a virtual cluster (`worlds`)."""
