"""Trains, changes and watches fleets."""
