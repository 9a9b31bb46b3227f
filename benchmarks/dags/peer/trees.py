"""The same flights for LightGBM, which takes no part in the comparison with the peer."""

from __future__ import annotations

from typing import Any

import lightgbm

from airflow_hops.hops import TrainContext


def train(context: TrainContext) -> Any:
    """A hundred trees of 31 leaves over the same outputs of the transform."""
    given = {"objective": "binary", "seed": context.params["seed"], "verbose": -1}
    return lightgbm.train(given, context.table("train").dataset(), 100)
