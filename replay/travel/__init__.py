"""The state at any moment of a log.

travel    the nearest snapshot before a moment, and a short fold from there
diff      the difference between two states;  diff_words: in words
stepper   a cursor that steps through a log, forward and back;  pages: its cache;  search: its filters
"""
