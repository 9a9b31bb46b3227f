"""Rolls a canary out step by step, and promotes it or rolls it back: a state machine in the model's record.

Each poll (:func:`poll`) is a separate step, short and idempotent. Between polls nothing runs or changes.
"""

from airflow_hops.ml.rollout.step import poll

__all__ = ["poll"]
