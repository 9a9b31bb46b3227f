"""Reports to send, in HTML and Markdown, and the cards of models, which are made from the store alone.

Whoever makes one decides what of it its reader may see.
"""
