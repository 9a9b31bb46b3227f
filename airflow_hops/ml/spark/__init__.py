"""Spark of a step: its context, and pools of its executors or of processes of this machine."""
