"""A log that lasts: `year` lets it grow, rotates it and looks at it; `filling` writes it."""
