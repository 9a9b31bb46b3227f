"""The transform graph: a preprocessing function traced to a SavedModel, loaded again, and put inside a served model."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.constants import Constants
from airflow_hops.runtime.feature_specs import FeatureSpecs, OutputSpec
from airflow_hops.runtime.tensorflow_graphs import import_tensorflow

SIGNATURE = "serving_default"
EXAMPLES_SIGNATURE, EXAMPLES = "serving_examples", "examples"
PROBABILITY = "probability"
PROBABILITIES, CLASS = "probabilities", "class"
OUTPUT_DTYPES = ("float32", "float64", "int32", "int64", "string")

Preprocess = Callable[[dict[str, Any], Constants], Mapping[str, Any]]


class _RawFeatures(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise BadInput(f"there is no raw feature {name!r}; there are {', '.join(self)}")


@dataclass(frozen=True)
class TracedTransform:
    """A traced preprocessing function.

    Attributes:
        function: Concrete function of the raw features (keyword arguments of shape ``[batch]``).
        outputs: Its outputs; the width of one whose shape the graph leaves open is -1.
        resources: Lookup tables and the like, which are saved with it.
    """

    function: Any
    outputs: dict[str, OutputSpec]
    resources: list[Any]

    def save(self, path: Path) -> None:
        """Writes the graph as a SavedModel with the signature ``serving_default``."""
        tf = import_tensorflow()
        module = tf.Module()
        module.resources = self.resources
        module.transform = self.function
        tf.saved_model.save(module, str(path), signatures={SIGNATURE: self.function})


def trace_transform(
    preprocess: Preprocess, inputs: Mapping[str, str], constants: Constants, *, name: str = "preprocess"
) -> TracedTransform:
    """Traces a preprocessing function once, with an open batch dimension.

    AutoGraph is off: the function is TensorFlow operations on tensors, and its errors keep their own lines.

    Args:
        preprocess: ``preprocess(features, constants)``.
        inputs: Dtypes of the raw features (and the time column) by name.
        constants: Figures of the training split.
        name: How messages call the function (``flights.features:preprocess``).

    Raises:
        BadInput: the function raises (the message names file and line), or an output is not a dense tensor of shape
            ``[batch]`` or ``[batch, width]``.
    """
    tf = import_tensorflow()
    from tensorflow.python.trackable.resource import ResourceTracker, resource_tracker_scope

    tracker = ResourceTracker()
    specs: dict[str, OutputSpec] = {}

    def transform(**features: Any) -> dict[str, Any]:
        try:
            # What TensorFlow creates for the function (tables of a vocabulary) must be saved with it.
            with resource_tracker_scope(tracker):
                outputs = preprocess(_RawFeatures({name: features[name] for name in inputs}), constants)
        except Exception as error:
            raise BadInput(f"preprocessing function {name!r} raised {_describe(error, preprocess)}") from error
        specs.update(_output_specs(outputs, constants, name))
        return {output: tf.identity(tensor, name=output) for output, tensor in outputs.items()}

    function = tf.function(transform, autograph=False).get_concrete_function(
        **{feature: tf.TensorSpec([None], dtype, name=feature) for feature, dtype in inputs.items()}
    )
    return TracedTransform(function, specs, list(tracker.resources))


def load_transform(path: Path) -> Callable[..., dict[str, Any]]:
    """Loads a saved transform graph.

    Returns:
        A function of the raw features, each a keyword argument of shape ``[batch]``, to the outputs by name.
    """
    loaded = import_tensorflow().saved_model.load(str(path))
    function = loaded.signatures[SIGNATURE]

    def transform(**features: Any) -> dict[str, Any]:
        outputs: dict[str, Any] = function(**features)
        return outputs

    transform.saved_model = loaded  # type: ignore[attr-defined]  # its tables live as long as the function
    return transform


def export_serving_model(
    path: Path, transform_graph: Path, model: Callable[[dict[str, Any]], Any], features_json: Path
) -> FeatureSpecs:
    """Writes a SavedModel that takes raw features, with the transform graph and the model inside it.

    Two signatures give the same outputs. ``serving_default`` takes ``specs.inputs``, each of shape ``[batch]``;
    ``serving_examples`` takes ``examples``, serialized ``tf.Example`` of shape ``[batch]``, in which a float that is
    missing is NaN and a string empty, as in the raw features; an integer cannot be missing.

    The outputs are, for two classes, ``probability``, float32 of shape ``[batch]``; for several, ``probabilities``,
    float32 of shape ``[batch, classes]``, and, where the classes have names, ``class``, that of the likeliest one,
    string of shape ``[batch]``.

    Args:
        path: Folder to write.
        transform_graph: Folder of the transform graph.
        model: A Keras 3 model, or a function, of the transform's outputs (a dict of tensors) to probabilities of shape
            ``[batch]``, ``[batch, 1]`` or ``[batch, classes]``. A Keras model whose inputs are a dict gets the outputs
            that it names.
        features_json: The transform's ``features.json``.

    Returns:
        The columns.

    Raises:
        BadInput: the model wants an output that the transform has not, or gives no probabilities a row, or not as many
            as there are classes.
    """
    tf = import_tensorflow()
    specs = FeatureSpecs.read(features_json)
    module = tf.Module()
    module.transform = tf.saved_model.load(str(transform_graph))
    # A Keras 3 variable wraps the TensorFlow variable that a checkpoint must hold.
    variables = getattr(model, "variables", ())
    module.model_variables = [v if isinstance(v, tf.Variable) else getattr(v, "value", v) for v in variables]
    if isinstance(model, tf.Module):
        # Of a model of tf_keras its layers alone: its optimizer may have functions that run among Horovod's ranks only.
        module.model = getattr(model, "layers", None) or model
    wanted = getattr(model, "input", None)
    names = list(wanted) if isinstance(wanted, dict) else list(specs.outputs)
    missing = [name for name in names if name not in specs.outputs]
    if missing:
        raise BadInput(
            f"the model wants the inputs {', '.join(map(repr, missing))}, which are not among the transform's outputs: "
            f"{', '.join(specs.outputs)}"
        )
    is_keras = hasattr(model, "variables") and hasattr(model, "trainable_weights")

    def serve(**features: Any) -> dict[str, Any]:
        outputs = module.transform.signatures[SIGNATURE](**features)
        given = {name: outputs[name] for name in names}
        found = model(given, training=False) if is_keras else model(given)  # type: ignore[call-arg]
        return _served_outputs(found, specs.classes)

    def serve_examples(examples: Any) -> dict[str, Any]:
        return serve(**tf.io.parse_example(examples, parsing_spec(specs.inputs)))

    raw = {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in specs.inputs.items()}
    signatures = {
        SIGNATURE: tf.function(serve, autograph=False).get_concrete_function(**raw),
        EXAMPLES_SIGNATURE: tf.function(serve_examples, autograph=False).get_concrete_function(
            tf.TensorSpec([None], tf.string, name=EXAMPLES)
        ),
    }
    tf.saved_model.save(module, str(path), signatures=signatures)
    return specs


def parsing_spec(inputs: Mapping[str, str]) -> dict[str, Any]:
    """How ``tf.io.parse_example`` finds raw features in a ``tf.Example``; what is missing is as it is in Parquet.

    Args:
        inputs: Dtypes (int64, float32, string) by name.
    """
    tf = import_tensorflow()
    defaults = {"float32": float("nan"), "string": ""}
    return {name: tf.io.FixedLenFeature([], dtype, defaults.get(dtype)) for name, dtype in inputs.items()}


def _served_outputs(found: Any, classes: tuple[str, ...] | None) -> dict[str, Any]:
    tf = import_tensorflow()
    shape = found.shape
    if shape.rank == 1 or (shape.rank == 2 and shape[1] == 1):
        if classes is not None and len(classes) != 2:
            raise BadInput(f"the model's output has shape {shape}, but there are {len(classes)} classes")
        return {PROBABILITY: tf.cast(tf.reshape(found, [-1]), tf.float32)}
    if shape.rank != 2 or shape[1] is None:
        raise BadInput(f"the model's output has shape {shape}, expected [batch], [batch, 1] or [batch, classes]")
    if classes is not None and len(classes) != shape[1]:
        raise BadInput(f"the model's output has shape {shape}, but there are {len(classes)} classes")
    outputs = {PROBABILITIES: tf.cast(found, tf.float32)}
    if classes is not None:
        outputs[CLASS] = tf.gather(tf.constant(classes), tf.argmax(found, axis=1))
    return outputs


def _output_specs(outputs: Any, constants: Constants, name: str) -> dict[str, OutputSpec]:
    tf = import_tensorflow()
    if not isinstance(outputs, Mapping) or not outputs:
        raise BadInput(
            f"preprocessing function {name!r} returned {type(outputs).__name__}, expected a dict of tensors by name"
        )
    vocabulary_sizes = {
        id(ids): vocabulary.size for vocabulary in constants.vocabularies for ids in vocabulary.looked_up
    }
    specs = {}
    for output, tensor in outputs.items():
        where = f"preprocessing function {name!r}: output {output!r}"
        if not isinstance(tensor, tf.Tensor):
            raise BadInput(f"{where} is a {type(tensor).__name__}, expected a dense tensor")
        dtype, shape = tensor.dtype.name, tensor.shape
        if dtype not in OUTPUT_DTYPES:
            raise BadInput(f"{where} is {dtype}, expected one of {', '.join(OUTPUT_DTYPES)}; cast it with tf.cast")
        if shape.rank not in (None, 1, 2):
            raise BadInput(f"{where} has shape {shape}, expected [batch] or [batch, width]")
        if shape.rank is not None and shape[0] is not None:
            raise BadInput(f"{where} has shape {shape}: its first dimension is {shape[0]}, not the batch")
        width = -1 if shape.rank is None else None if shape.rank == 1 else shape[1] if shape[1] is not None else -1
        specs[output] = OutputSpec(dtype, width, vocabulary_sizes.get(id(tensor)))
    return specs


def _describe(error: Exception, preprocess: Preprocess) -> str:
    """The error and the line of the user's code that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(preprocess, "__code__", None)
    folder = str(Path(code.co_filename).parent) if code else ""
    own = [frame for frame in frames if folder and frame.filename.startswith(folder)]
    frame = (own or list(frames))[-1]
    text = str(error).strip()
    return f"{type(error).__name__} at {frame.filename}, line {frame.lineno} ({frame.line}): {text}"
