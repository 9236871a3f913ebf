"""A log as a picture.

model    what held from when to when
fold     makes it from a log, within `bounds` of memory;  figures: the cluster's figures in it
html, png, trace   draw it as a page, as one picture, or for Perfetto;  words: its texts
"""
