"""Launchers start a step's process somewhere, stream what it says, and kill it. They know nothing of ML."""
