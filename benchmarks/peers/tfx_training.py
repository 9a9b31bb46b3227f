"""What the ``run_fn`` of the peer's examples have in common: reading, fitting, and a signature on raw examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tensorflow.python.autograph.core import config as autograph_config
from tfx_bsl.public import tfxio

# AutoGraph knows that Keras needs no conversion, but not under the name of tf_keras; converting it costs many seconds.
autograph_config.CONVERSION_RULES = (autograph_config.DoNotConvert("tf_keras"), *autograph_config.CONVERSION_RULES)


def fit_and_save(
    fn_args: Any,
    label: str,
    make_model: Callable[[tft.TFTransformOutput], tf.keras.Model],
    *,
    names: Sequence[str],
    output: str,
    epochs: int,
    batch_rows: int,
) -> None:
    """Trains a compiled model on fully shuffled examples, and saves it with a signature on raw ones.

    Args:
        fn_args: What TFX's Trainer passes.
        label: Column of the label.
        make_model: Returns the model, whose inputs are features of the transform by name.
        names: Those features.
        output: Name of the signature's output.
        epochs: Passes over the examples.
        batch_rows: Rows of a batch.
    """
    transform = tft.TFTransformOutput(fn_args.transform_output)
    options = tfxio.TensorFlowDatasetOptions(
        batch_size=batch_rows, label_key=label, shuffle=True, shuffle_buffer_size=200_000, num_epochs=epochs
    )
    schema = transform.transformed_metadata.schema
    model = make_model(transform)
    model.fit(fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema), verbose=0)
    model.transform_layer = transform.transform_features_layer()
    raw_spec = {name: spec for name, spec in transform.raw_feature_spec().items() if name != label}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = model.transform_layer(tf.io.parse_example(examples, raw_spec))
        return {output: model({name: features[name] for name in names})}

    model.save(fn_args.serving_model_dir, save_format="tf", signatures={"serving_default": serve})
