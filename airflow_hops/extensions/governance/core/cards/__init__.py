"""Model cards in Markdown, made from the store alone."""
