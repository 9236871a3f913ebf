"""Ready-made things to run: sample apps (`compose.apps`), their image, and clusters to start from."""
