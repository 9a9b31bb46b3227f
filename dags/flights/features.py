"""Features of the flights model: one function, run by Spark for training and by the server for serving.

It knows only what is known when the flight is scheduled, and the weather of the hour. The month is no feature: a model
has to serve months that it was not trained on.
"""

from __future__ import annotations

import tensorflow as tf

from airflow_hops import Constants, columns, cyclic, is_missing, vocabulary_ids, z_score

SCALED = (
    "origin_departures_hour",
    "distance",
    "plane_age",
    "plane_seats",
    "temp",
    "dewp",
    "humid",
    "wind_speed",
    "precip",
    "pressure",
    "visib",
    "dest_lat",
    "dest_lon",
)
MAY_BE_MISSING = ("plane_age", "plane_seats", "temp", "wind_speed", "precip", "pressure", "visib", "dest_lat")
MINUTES_A_DAY = 1440


def preprocess(features: dict[str, tf.Tensor], constants: Constants) -> dict[str, tf.Tensor]:
    """Raw features of shape [batch] to the model's inputs.

    Args:
        features: Raw features and the time column.
        constants: Figures of the training split.

    Returns:
        ``numeric``, float32 [batch, width]; ``carrier_id``, ``origin_id``, ``dest_id`` and ``manufacturer_id``, int64
        [batch], 0 for unknown or missing.
    """
    departure = tf.cast(features["scheduled_minute"], tf.float32)
    arrival = tf.cast(features["scheduled_arrival_minute"], tf.float32)
    day = departure / MINUTES_A_DAY
    numeric = columns(
        [
            *(z_score(features, name, constants) for name in SCALED),
            *(is_missing(features[name]) for name in MAY_BE_MISSING),
            # Lateness builds up over the day and is gone by the morning: a slope, and a circle for its curve.
            2 * day - 1,
            tf.square(2 * day - 1),
            cyclic(departure, MINUTES_A_DAY),
            cyclic(arrival, MINUTES_A_DAY),
            tf.one_hot(features["weekday"], 7),
        ]
    )
    return {
        "numeric": numeric,
        "carrier_id": vocabulary_ids(features["carrier"], constants.vocabulary("carrier", min_frequency=20)),
        "origin_id": vocabulary_ids(features["origin"], constants.vocabulary("origin")),
        "dest_id": vocabulary_ids(features["dest"], constants.vocabulary("dest", min_frequency=20)),
        "manufacturer_id": vocabulary_ids(
            features["plane_manufacturer"], constants.vocabulary("plane_manufacturer", top_k=20, min_frequency=20)
        ),
    }
