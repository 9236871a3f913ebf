"""Why things are as they are: explanations and stories.

    explain        why an app has what it has;  explain_words: in words;  explanation: what it holds
    story          what happened to an app or a node, in chapters
    app, node      the observers that write them;  chapters: what they are made of;  words: in words
    settings       changes of settings as causes
    surroundings   who has which places, and what caused a decision;  spent: where an app's time went

Start with `story`.
"""
