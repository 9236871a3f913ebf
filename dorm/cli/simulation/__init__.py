"""`dorm simulate`: policies side by side in virtual time, and the results as tables and documents (comparisons)."""
