"""Captured requests of a model server, and the labels that came later."""
