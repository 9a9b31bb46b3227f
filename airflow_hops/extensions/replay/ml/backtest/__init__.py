"""Scores a history with the candidates of a back-test."""
