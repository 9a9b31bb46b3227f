"""Reports in HTML and Markdown, and model cards, which are made from the store only.

Callers decide what a report's readers may see.
"""
