"""What the site is built from: pages in Markdown, and `docs.site`, which generates the reference."""
