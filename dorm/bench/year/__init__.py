"""A log over a year: `year` lets it grow, rotates it and measures it; `filling` writes it."""
