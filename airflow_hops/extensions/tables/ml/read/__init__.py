"""Readers of tables, one module for each kind of table."""
