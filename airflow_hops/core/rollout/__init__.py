"""Rollout of a canary: plan, limits, counts, progress and decision."""
