"""What keeps an app from running: by hand on a bench, and in histories of a virtual cluster (`worlds`)."""
