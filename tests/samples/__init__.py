"""The starter programs (`compose.apps.starters`), each on a real cluster and through a resize."""
