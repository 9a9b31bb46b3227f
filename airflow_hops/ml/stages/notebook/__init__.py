"""Runs notebooks as steps (``stage``), and as the code of ranks (``script``)."""
