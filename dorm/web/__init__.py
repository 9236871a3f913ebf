"""The dashboard: a page of plain ES modules, and the code that serves or embeds it.

page_files  the page's files by name
offline     the same page as one file with its data inside

`page/` holds the page: `index.html`, the style sheet and the modules.  Start with `page/main.js`; `page/source.js` is the only
module that knows where data comes from.  All tabs of a browser share one connection for what they follow: `page/streams.js`
holds it, in the worker `page/worker.js`, and `page/feed.js` is a tab's side of it.  `page/vendor` has Preact with htm;
`python -m tests.web.vendored` takes it from npm again, by its hash.

A package of its own because the page's files are its data; it imports nothing of the project.
"""
