"""Commands about when apps may run.

hold      keep an app from running, or have it give its containers back
release   let it continue
"""
