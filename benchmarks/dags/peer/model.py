"""The peer's model: embeddings of 8, 2 and 16, two dense layers of 64, Adam."""

from __future__ import annotations

import keras
from keras import layers

from airflow_hops.hops import DistributedOptimizer, TrainContext

EMBEDDING_WIDTH = {"carrier_id": 8, "origin_id": 2, "dest_id": 16}
BATCH_ROWS = 512
EPOCHS = 2


def train(context: TrainContext) -> keras.Model:
    """Two epochs over fully shuffled rows; a batch has 512 rows over all ranks."""
    keras.utils.set_random_seed(context.params["seed"])
    inputs, parts = {}, []
    for name, feature in context.feature_outputs.items():
        inputs[name] = keras.Input(shape=(feature.width,) if feature.width else (), dtype=feature.dtype, name=name)
        if feature.vocabulary_size:
            parts.append(layers.Embedding(feature.vocabulary_size, EMBEDDING_WIDTH[name])(inputs[name]))
        else:
            parts.append(inputs[name])
    hidden = layers.Concatenate()(parts)
    for _ in range(2):
        hidden = layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        optimizer=DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        loss="binary_crossentropy",
        steps_per_execution=16,
        jit_compile=False,
    )
    # The peer measures the eval split in its Evaluator alone, and so does this pipeline.
    context.fit(model, epochs=EPOCHS, batch_size=BATCH_ROWS, validation_split=None)
    return model
