"""Finds, loads, calls and unloads models."""
