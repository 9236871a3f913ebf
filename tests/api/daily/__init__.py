"""Daily work with apps over HTTP: edits, restarts, sweeps, their past."""
