"""Explanations and stories: why things are as they are.

    explain        why an app has what it has;  explain_words: in words;  explanation: its fields
    story          what happened to an app or a node, in chapters
    app, node      the observers that write them;  app_nodes: the nodes of an app;  chapters: their fields;  words: in words
    settings       changes of settings as causes
    surroundings   which app has which places, and what caused a decision;  spent: where an app's time went

Start with `story`.
"""
