"""What people do every day with apps, over HTTP: edits, restarts, sweeps, their past."""
