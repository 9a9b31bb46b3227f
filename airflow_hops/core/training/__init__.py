"""Trainings: options, places of their ranks, and records."""
