"""The programs to begin with (`compose.apps.starters`), each on a real cluster and through a resize."""
