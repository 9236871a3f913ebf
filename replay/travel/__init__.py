"""The state at any moment of a log.

travel    the nearest snapshot before a moment, and a short fold from there
diff      what differs between two states;  diff_words: in words
stepper   a cursor that walks through a log, forward and back;  pages: its cache;  search: what it looks for
"""
