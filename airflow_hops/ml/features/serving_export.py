"""Embeds a transform graph and a model in one SavedModel that takes raw features."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.artifacts.target import BINARY, CLASS, MULTICLASS, OUTPUTS, REGRESSION, Target, check_heads
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.feature_specs import FeatureSpecs, OutputSpec
from airflow_hops.ml.features.signature_inputs import argument_names, argument_specs, load_signature, name_inputs
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.readers.vectors import row_shape, split_dtype

if TYPE_CHECKING:
    import tensorflow as tf

EXAMPLES_SIGNATURE, EXAMPLES = "serving_examples", "examples"
PREDICT_FUNCTION = "predict"
"""Attribute of a loaded model: the function without the transform."""

log = logging.getLogger(__name__)


def export_serving_model(
    path: Path, transform_graph: Path, model: Callable[[dict[str, tf.Tensor]], object], features_json: Path
) -> dict[str, str]:
    """Writes a SavedModel that takes raw features, with the transform graph and the model inside it.

    Two signatures have the same outputs. ``serving_default`` takes the raw features that the model uses, and the
    transform's ``extra_inputs``, each of shape ``[batch]``, vectors ``[batch, width]``. ``serving_examples`` takes
    ``examples``, serialized ``tf.Example`` of shape ``[batch]``. As in the raw features, a missing float is NaN, a
    missing vector all NaN, and a missing string empty; an integer cannot be missing. The function that both call with
    the transform's outputs, in their order, is the attribute :data:`PREDICT_FUNCTION`.

    For two classes, the output is ``probability``, that of the second, float32 of shape ``[batch]``. For more classes,
    outputs are ``probabilities``, float32 of shape ``[batch, classes]``, and ``class``, the name of the likeliest,
    string of shape ``[batch]``. In a regression it is ``prediction``, float32 of shape ``[batch]``. Outputs for a
    further label have its name as prefix: ``minutes_prediction``. Other outputs of the model are served unchanged.

    Args:
        path: Folder to write.
        transform_graph: Folder of the transform graph.
        model: A Keras 3 model, or a function, of the transform's outputs (a dict of tensors) to numbers of shape
            ``[batch]``, ``[batch, 1]`` or ``[batch, classes]``: probabilities, or, in a regression, predictions; for
            several labels a dict of them by label. A Keras model with a dict of inputs gets only these outputs.
        features_json: The transform's ``features.json``.

    Returns:
        Dtypes of the signature's inputs, by name.

    Raises:
        BadInput: the model needs an output that the transform lacks, or its output has another shape than its label
            requires, or is missing for a label.
    """
    import tensorflow as tf

    specs = FeatureSpecs.read(features_json)
    module, names = _module_of(model, specs.outputs)
    module.transform = tf.saved_model.load(str(transform_graph))
    transform = load_signature(transform_graph, module.transform, SIGNATURE)
    inputs = specs.inputs_of(names)
    arguments = argument_names(inputs)

    def predict(*outputs: object) -> dict[str, tf.Tensor]:
        return served_outputs(_call(model, dict(zip(names, outputs, strict=True))), specs.target)

    predict_function = tf.function(predict, autograph=False)
    setattr(module, PREDICT_FUNCTION, predict_function)

    def serve(features: Mapping[str, object]) -> dict[str, object]:
        rows = tf.shape(next(iter(features.values())))[:1]
        # The transform graph requires these inputs, but the model's outputs do not depend on them.
        unused = {
            name: tf.zeros(tf.concat([rows, tf.constant(row_shape(dtype), tf.int32)], 0), split_dtype(dtype)[0])
            for name, dtype in specs.inputs.items()
            if name not in inputs
        }
        outputs = transform({**features, **unused})
        served: dict[str, tf.Tensor] = predict_function(*(outputs[name] for name in names))
        return served

    def serve_columns(**tensors: object) -> dict[str, tf.Tensor]:
        return serve({column: tensors[argument] for column, argument in arguments.items()})

    def serve_examples(examples: object) -> dict[str, tf.Tensor]:
        return serve(tf.io.parse_example(examples, parsing_spec(inputs)))

    raw = argument_specs(inputs, arguments)
    with exporting():
        signatures = {
            SIGNATURE: tf.function(serve_columns, autograph=False).get_concrete_function(**raw),
            EXAMPLES_SIGNATURE: tf.function(serve_examples, autograph=False).get_concrete_function(
                tf.TensorSpec([None], tf.string, name=EXAMPLES)
            ),
        }
        tf.saved_model.save(module, str(path), signatures=signatures)
    name_inputs(path, SIGNATURE, arguments)
    return inputs


def check_exportable(model: object, outputs: Mapping[str, OutputSpec], target: Target) -> None:
    """Checks, before a training, that a Keras model can be exported, and warns if its output is not one to serve.

    Args:
        model: The model, built.
        outputs: The transform's outputs.
        target: Target of the returned model, which may be another one with the same layers.

    Raises:
        BadInput: the model cannot be traced, or uses a table that it would not be saved with.
    """
    import tensorflow as tf

    module, names = _module_of(model, outputs)
    specs = output_specs({name: outputs[name] for name in names}).values()
    with exporting():
        function = tf.function(lambda *values: _call(model, dict(zip(names, values, strict=True))), autograph=False)
        traced = function.get_concrete_function(*specs)
    saved = tf.train.TrackableView(module).descendants()
    tracked = {
        id(getattr(part, name)) for part in saved for name in ("handle", "resource_handle") if hasattr(part, name)
    }
    for resource, _ in traced.graph.captures:
        if resource.dtype == tf.resource and id(resource) not in tracked:
            raise BadInput(_UNTRACKED)
    try:
        with traced.graph.as_default():
            served_outputs(traced.structured_outputs, target)
    except BadInput as error:
        log.warning("the trained model cannot be served as it is; return one that can: %s", error)


_UNTRACKED = (
    "the model uses a table or variable that is not an attribute of any of its layers, so that it would not be saved "
    "with the model; assign it to an attribute of the layer in __init__ or build"
)


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Raises BadInput for an error that prevents the export of a model, since a retry cannot help."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        text = _UNTRACKED if "'untracked' resource" in str(error) else f"{type(error).__name__}: {error}"
        raise BadInput(f"the model cannot be exported: {text}") from error


def _module_of(model: object, outputs: Mapping[str, OutputSpec]) -> tuple[tf.Module, list[str]]:
    """Returns the module to save, with model and graph, and the names of the transform's outputs that it takes."""
    import tensorflow as tf
    from tensorflow.python.trackable.resource import TrackableResource

    module = tf.Module()
    # Keras 3.15: variables wrap the TensorFlow variables that a checkpoint must contain.
    variables = getattr(model, "variables", ())
    module.model_variables = [v if isinstance(v, tf.Variable) else getattr(v, "value", v) for v in variables]
    if isinstance(model, tf.Module):
        # tf-keras 2.16: an optimizer may have functions that only run among Horovod's ranks, so only the layers.
        module.model = getattr(model, "layers", None) or model
    elif _is_keras(model):  # the tables of IntegerLookup, StringLookup and TextVectorization
        parts = tf.train.TrackableView(model).descendants()
        module.model_resources = [part for part in parts if isinstance(part, TrackableResource)]
    names = outputs_taken(model, outputs)
    missing = [name for name in names if name not in outputs]
    if missing:
        raise BadInput(
            f"the model expects the inputs {', '.join(map(repr, missing))}, which are not among the transform's "
            f"outputs: {', '.join(outputs)}"
        )
    return module, names


def outputs_taken(model: object, outputs: Iterable[str]) -> list[str]:
    """Returns the transform's outputs that an exported model takes: those named by its dict of inputs, else all."""
    wanted = getattr(model, "input", None)
    return list(wanted if isinstance(wanted, dict) else outputs)


def output_specs(outputs: Mapping[str, OutputSpec]) -> dict[str, object]:
    """Returns the tensor specs of batches of a transform's outputs, by name."""
    import tensorflow as tf

    shapes = {name: [None if size == -1 else size for size in spec.shape] for name, spec in outputs.items()}
    return {name: tf.TensorSpec([None, *shapes[name]], spec.dtype) for name, spec in outputs.items()}


def _is_keras(model: object) -> bool:
    return hasattr(model, "variables") and hasattr(model, "trainable_weights")


def _call(model: Any, values: Mapping[str, object]) -> object:
    return model(values, training=False) if _is_keras(model) else model(values)


def parsing_spec(inputs: Mapping[str, str]) -> dict[str, object]:
    """Returns the specs with which ``tf.io.parse_example`` parses inputs; missing values are as in Parquet."""
    import tensorflow as tf

    def parsed(dtype: str) -> tf.io.FixedLenFeature:
        values, width = split_dtype(dtype)
        default = {"float32": float("nan"), "string": ""}.get(values)
        return tf.io.FixedLenFeature(row_shape(dtype), values, default if width is None else [default] * width)

    return {name: parsed(dtype) for name, dtype in inputs.items()}


def served_outputs(found: object, target: Target) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature, by name.

    Args:
        found: Output of the model: numbers of shape ``[batch]``, ``[batch, 1]`` or ``[batch, classes]``; or a dict of
            them by label, and of tensors ``[batch, …]`` with other names, which are served unchanged.
        target: The model's target.

    Raises:
        BadInput: numbers have another shape, a label has no output, or two outputs have the same name.
    """
    import tensorflow as tf

    heads = check_heads(found, target, "the model")
    if heads is None:
        return _served_head(found, target)
    outputs: dict[str, tf.Tensor] = {}
    for each in target.all:
        prefix = target.output_prefix(each.label)
        try:
            served = _served_head(tf.convert_to_tensor(heads[each.label]), each)
        except BadInput as error:
            raise BadInput(f"label {each.label!r}: {error}") from None
        outputs |= {f"{prefix}{name}": values for name, values in served.items()}
    labels = {each.label for each in target.all}
    for name, values in heads.items():
        if name in labels:
            continue
        if not tf.is_tensor(values) or values.shape.rank == 0:
            raise BadInput(f"the model's output {name!r} is {values!r}; expected a tensor [batch, …]")
        if name in outputs:
            raise BadInput(
                f"the model's output {name!r} has the name of the output that is served for a label; rename it"
            )
        outputs[name] = values
    return outputs


def _served_head(result: tf.Tensor, target: Target) -> dict[str, tf.Tensor]:
    """Returns the outputs for one label, by name."""
    import tensorflow as tf

    shape = result.shape
    width = 1 if shape.rank == 1 else shape[1] if shape.rank == 2 else None
    classes = len(target.classes or ())
    if width not in {REGRESSION: (1,), BINARY: (1, 2)}.get(target.problem, (classes,)):
        expected = "[batch, classes]" if target.problem == MULTICLASS else "[batch] or [batch, 1]"
        reason = "the label is a number" if target.problem == REGRESSION else f"there are {classes or 2} classes"
        raise BadInput(f"the model's output has shape {shape}, but {reason}; expected {expected}")
    numbers = tf.cast(result, tf.float32)
    if target.problem == MULTICLASS:
        return {OUTPUTS[MULTICLASS]: numbers, CLASS: tf.gather(tf.constant(target.classes), tf.argmax(result, axis=1))}
    one = tf.reshape(numbers, [-1]) if width == 1 else numbers[:, 1]
    return {OUTPUTS[target.problem]: one}
