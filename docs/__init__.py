"""The sources of the site: pages in Markdown, and `docs.site`, which generates the reference."""
