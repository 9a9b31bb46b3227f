"""Garbage collection of a store."""
