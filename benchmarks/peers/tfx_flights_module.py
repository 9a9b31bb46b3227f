"""The peer's user code: its preprocessing function (TensorFlow Transform) and its model (tf_keras)."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft
from tensorflow.python.autograph.core import config as autograph_config
from tfx_bsl.public import tfxio

# AutoGraph knows that Keras needs no conversion, but not under the name of tf_keras; converting it costs many seconds.
autograph_config.CONVERSION_RULES = (autograph_config.DoNotConvert("tf_keras"), *autograph_config.CONVERSION_RULES)

LABEL = "late"
SCALED = ("month", "day", "hour", "sched_dep_time", "weekday", "distance")
EMBEDDED = {"carrier": 8, "origin": 2, "dest": 16}
BATCH_ROWS = 512
EPOCHS = 2


def preprocessing_fn(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Raw features, sparse or dense of shape [batch, 1], to z-scores and vocabulary ids."""
    outputs = {name: tft.scale_to_z_score(tf.cast(inputs[name], tf.float32)) for name in SCALED}
    for name in EMBEDDED:
        outputs[name] = tft.compute_and_apply_vocabulary(inputs[name], num_oov_buckets=1, vocab_filename=name)
    outputs[LABEL] = inputs[LABEL]
    return outputs


def run_fn(fn_args) -> None:
    """TFX's Trainer calls this: two epochs over fully shuffled examples, and a serving signature on raw examples."""
    transform = tft.TFTransformOutput(fn_args.transform_output)
    schema = transform.transformed_metadata.schema
    options = tfxio.TensorFlowDatasetOptions(
        batch_size=BATCH_ROWS, label_key=LABEL, shuffle=True, shuffle_buffer_size=200_000, num_epochs=EPOCHS
    )
    dataset = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
    model = _model(transform)
    model.compile(tf.keras.optimizers.Adam(1e-3), "binary_crossentropy")
    model.fit(dataset, verbose=0)
    model.transform_layer = transform.transform_features_layer()
    raw_spec = {name: spec for name, spec in transform.raw_feature_spec().items() if name != LABEL}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = model.transform_layer(tf.io.parse_example(examples, raw_spec))
        return {"probability": model({name: features[name] for name in (*SCALED, *EMBEDDED)})}

    model.save(fn_args.serving_model_dir, save_format="tf", signatures={"serving_default": serve})


def _model(transform: tft.TFTransformOutput) -> tf.keras.Model:
    inputs = {name: tf.keras.Input([1], name=name, dtype=tf.float32) for name in SCALED}
    parts = list(inputs.values())
    for name, width in EMBEDDED.items():
        inputs[name] = tf.keras.Input([1], name=name, dtype=tf.int64)
        size = transform.vocabulary_size_by_name(name) + 1
        parts.append(tf.keras.layers.Flatten()(tf.keras.layers.Embedding(size, width)(inputs[name])))
    hidden = tf.keras.layers.Concatenate()(parts)
    for _ in range(2):
        hidden = tf.keras.layers.Dense(64, activation="relu")(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
