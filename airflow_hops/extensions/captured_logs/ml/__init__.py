"""Entries of logs as captured rows."""
