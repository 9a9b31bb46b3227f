"""Spark of a step: its context, and tasks in its executors or in processes of this machine."""
