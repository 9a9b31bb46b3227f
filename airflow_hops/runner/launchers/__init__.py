"""Launchers start a step's process on some machine, stream its output, and kill it. They do not depend on ML."""
