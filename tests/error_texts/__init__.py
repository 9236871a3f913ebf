"""The wording of errors, by area: rows of the table in `tests/test_error_texts.py`."""
