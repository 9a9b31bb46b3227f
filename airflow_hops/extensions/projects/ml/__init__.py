"""Reads a file, and determines its columns, their roles and the problem."""
