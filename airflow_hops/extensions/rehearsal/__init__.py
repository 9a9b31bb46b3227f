"""Rehearsals of a model's monitor."""
