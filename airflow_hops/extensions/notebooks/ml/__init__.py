"""Execution of notebooks, and views of a pipeline in them."""
