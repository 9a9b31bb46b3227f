"""Ranks on other machines, by SSH."""
