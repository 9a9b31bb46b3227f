"""Shared by both sides of a fleet: its files, its options and its records."""
