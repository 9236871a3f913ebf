"""The documentation: every command it shows runs, and the generated references are up to date."""
