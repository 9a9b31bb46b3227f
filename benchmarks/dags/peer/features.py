"""The peer's features: six z-scores and three vocabularies."""

from __future__ import annotations

import tensorflow as tf

from airflow_hops.hops import Constants, columns, vocabulary_ids, z_score

SCALED = ("month", "day", "hour", "sched_dep_time", "weekday", "distance")
EMBEDDED = ("carrier", "origin", "dest")


def preprocess(features: dict[str, tf.Tensor], constants: Constants) -> dict[str, tf.Tensor]:
    """Raw features of shape [batch] to ``numeric``, float32 [batch, 6], and an id, int64 [batch], for each string."""
    ids = {f"{name}_id": vocabulary_ids(features[name], constants.vocabulary(name)) for name in EMBEDDED}
    return {"numeric": columns([z_score(features, name, constants, clip=None) for name in SCALED]), **ids}
