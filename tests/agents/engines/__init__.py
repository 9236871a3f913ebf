"""What each engine adds to a container, and the launcher of MPI jobs with real processes."""
