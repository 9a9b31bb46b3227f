"""Operators, one module a stage."""
