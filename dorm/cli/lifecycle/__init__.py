"""Commands that change an app that exists.

scale      how many containers it may have
edit       another spec for it;  editing: from what people type to the document of a spec;  shipping: the folder that
           it names
restart    start it again, from its checkpoint or without
retry      retry it now if it pauses after a failure
"""
