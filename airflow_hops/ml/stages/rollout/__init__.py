"""Rolls a canary out step by step, and promotes it or rolls it back: a state machine in the model's record.

Each look (:func:`look`) is a step of its own, short and idempotent. Between looks nothing runs, and nothing changes.
"""

from airflow_hops.ml.stages.rollout.step import look

__all__ = ["look"]
