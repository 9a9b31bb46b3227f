"""Transform graph: traces a preprocessing function to a SavedModel, loads it, and embeds it in a served model."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import BINARY, CLASS, MULTICLASS, OUTPUTS, REGRESSION, Target, check_heads
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs, OutputSpec
from airflow_hops.ml.features.signature_inputs import LoadedSignature, argument_names, name_inputs
from airflow_hops.ml.readers.vectors import row_shape, split_dtype

SIGNATURE = "serving_default"
EXAMPLES_SIGNATURE, EXAMPLES = "serving_examples", "examples"
PREDICT_FUNCTION = "predict"
"""Attribute of a loaded model: the function without the transform."""
OUTPUT_DTYPES = ("float32", "float64", "int32", "int64", "string")

log = logging.getLogger(__name__)

Preprocess = Callable[[dict[str, Any], Constants], Mapping[str, Any]]


class _RawFeatures(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise BadInput(f"there is no raw feature {name!r}; there are {', '.join(self)}")


@dataclass(frozen=True)
class TracedTransform:
    """Traced preprocessing function.

    Attributes:
        function: Concrete function of the raw features, as keyword arguments of shape ``[batch]`` or, for vectors,
            ``[batch, width]``.
        outputs: Specs of the outputs; the width is -1 if the graph leaves it open.
        resources: Lookup tables and other resources, which are saved with it.
        arguments: The function's argument names, by raw feature.
    """

    function: Any
    outputs: dict[str, OutputSpec]
    resources: list[Any]
    arguments: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the graph as a SavedModel with the signature ``serving_default``."""
        import tensorflow as tf

        module = tf.Module()
        module.resources = self.resources
        module.transform = self.function
        tf.saved_model.save(module, str(path), signatures={SIGNATURE: self.function})
        name_inputs(path, SIGNATURE, self.arguments)


def trace_transform(
    preprocess: Preprocess, inputs: Mapping[str, str], constants: Constants, *, name: str = "preprocess"
) -> TracedTransform:
    """Traces a preprocessing function once, with an open batch dimension.

    AutoGraph is off: the function consists of TensorFlow operations, and its errors show its own lines.

    Args:
        preprocess: ``preprocess(features, constants)``.
        inputs: Dtypes of the raw features (and the time column) by name.
        constants: Statistics of the training split.
        name: Name of the function for messages (``flights.features:preprocess``).

    Raises:
        BadInput: the function raises (the message names file and line), or an output is not a dense tensor of shape
            ``[batch]`` or ``[batch, width]``.
    """
    import tensorflow as tf
    from tensorflow.python.trackable.resource import ResourceTracker, resource_tracker_scope

    tracker = ResourceTracker()
    specs: dict[str, OutputSpec] = {}
    values: dict[str, Any] = {}
    made: dict[str, Any] = {}
    arguments = argument_names(inputs)

    def transform(**tensors: Any) -> dict[str, Any]:
        features = {feature: tensors[argument] for feature, argument in arguments.items()}
        try:
            # Resources that TensorFlow creates for the function (vocabulary tables) must be saved with it.
            with resource_tracker_scope(tracker):
                outputs = preprocess(_RawFeatures(features), constants)
        except Exception as error:
            raise BadInput(f"preprocessing function {name!r} raised {_describe(error, preprocess)}") from error
        specs.update(_output_specs(outputs, constants, name))
        values.update(features)
        made.update({output: tf.identity(tensor) for output, tensor in outputs.items()})
        return dict(made)

    function = tf.function(transform, autograph=False).get_concrete_function(**_raw_specs(inputs, arguments))
    # Control outputs include unused lookups, which have no effect, unlike assertions.
    effects = [op for op in function.graph.control_outputs if not op.type.startswith("LookupTable")]
    read = {output: _inputs_of(tensor, values, effects) for output, tensor in made.items()}
    outputs = {output: replace(spec, inputs=read[output]) for output, spec in specs.items()}
    return TracedTransform(function, outputs, list(tracker.resources), arguments)


def load_transform(path: Path) -> Callable[..., dict[str, Any]]:
    """Loads a saved transform graph, to run in the calling thread.

    Unlike ``tf.saved_model.load``, a session of TensorFlow 1 makes no Python objects of the graph's functions, so that
    a fork copies 16 MiB less of shared memory.

    Returns:
        A function from arrays of raw features, as keyword arguments of shape ``[batch]`` or, for vectors, ``[batch,
        width]``, to arrays of the outputs by name.
    """
    from tensorflow.core.protobuf.config_pb2 import CallableOptions, ConfigProto
    from tensorflow.python.client.session import Session
    from tensorflow.python.framework import ops
    from tensorflow.python.saved_model import loader_impl, tag_constants

    one_thread = ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with ops.Graph().as_default() as graph:
        session = Session(config=one_thread)
        loaded = loader_impl.load(session, [tag_constants.SERVING], str(path))
    ops.dismantle_graph(graph)  # the session has its own copy
    definition = loaded.signature_def[SIGNATURE]
    inputs, outputs = list(definition.inputs), list(definition.outputs)
    options = CallableOptions(
        feed=[definition.inputs[name].name for name in inputs],
        fetch=[definition.outputs[name].name for name in outputs],
    )
    options.run_options.inter_op_thread_pool = -1  # no thread pool
    run = session._make_callable_from_options(options)

    def transform(**features: Any) -> dict[str, Any]:
        return dict(zip(outputs, run(*(features[name] for name in inputs)), strict=True))

    return transform


def export_serving_model(
    path: Path, transform_graph: Path, model: Callable[[dict[str, Any]], Any], features_json: Path
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
    transform = LoadedSignature(transform_graph, module.transform, SIGNATURE)
    inputs = specs.inputs_of(names)
    arguments = argument_names(inputs)

    def predict(*outputs: Any) -> dict[str, Any]:
        return served_outputs(_call(model, dict(zip(names, outputs, strict=True))), specs.target)

    predict_function = tf.function(predict, autograph=False)
    setattr(module, PREDICT_FUNCTION, predict_function)

    def serve(features: Mapping[str, Any]) -> dict[str, Any]:
        rows = tf.shape(next(iter(features.values())))[:1]
        # The transform graph requires these inputs, but the model's outputs do not depend on them.
        unused = {
            name: tf.zeros(tf.concat([rows, tf.constant(row_shape(dtype), tf.int32)], 0), split_dtype(dtype)[0])
            for name, dtype in specs.inputs.items()
            if name not in inputs
        }
        outputs = transform({**features, **unused})
        served: dict[str, Any] = predict_function(*(outputs[name] for name in names))
        return served

    def serve_columns(**tensors: Any) -> dict[str, Any]:
        return serve({column: tensors[argument] for column, argument in arguments.items()})

    def serve_examples(examples: Any) -> dict[str, Any]:
        return serve(tf.io.parse_example(examples, parsing_spec(inputs)))

    raw = _raw_specs(inputs, arguments)
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


def check_exportable(model: Any, outputs: Mapping[str, OutputSpec], target: Target) -> None:
    """Checks, before a training, that a Keras model can be exported, and warns if its output is not one to serve.

    Args:
        model: The model, built.
        outputs: The transform's outputs.
        target: What the returned model must predict, which may be another one with the same layers.

    Raises:
        BadInput: the model cannot be traced, or uses a table that it would not be saved with.
    """
    import tensorflow as tf

    module, names = _module_of(model, outputs)
    specs = [
        tf.TensorSpec([None, *(None if n == -1 else n for n in outputs[x].shape)], outputs[x].dtype) for x in names
    ]
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
        log.warning("the model that is trained cannot be served as it is; return one that can: %s", error)


_UNTRACKED = (
    "the model uses a table or variable that is not an attribute of any of its layers, so that it would not be saved "
    "with the model; assign it to an attribute of the layer in __init__ or build"
)


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Raises BadInput for what prevents the export of a model, and would again in a retry."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        text = _UNTRACKED if "'untracked' resource" in str(error) else f"{type(error).__name__}: {error}"
        raise BadInput(f"the model cannot be exported: {text}") from error


def _module_of(model: Any, outputs: Mapping[str, OutputSpec]) -> tuple[Any, list[str]]:
    """Returns a module with all that a model is saved with, and the names of the transform's outputs that it takes."""
    import tensorflow as tf
    from tensorflow.python.trackable.resource import TrackableResource

    module = tf.Module()
    # Keras 3 variables wrap the TensorFlow variables that a checkpoint must contain.
    variables = getattr(model, "variables", ())
    module.model_variables = [v if isinstance(v, tf.Variable) else getattr(v, "value", v) for v in variables]
    if isinstance(model, tf.Module):
        # For tf_keras, only the layers: the optimizer may have functions that only run among Horovod's ranks.
        module.model = getattr(model, "layers", None) or model
    elif _is_keras(model):  # the tables of IntegerLookup, StringLookup and TextVectorization
        parts = tf.train.TrackableView(model).descendants()
        module.model_resources = [part for part in parts if isinstance(part, TrackableResource)]
    wanted = getattr(model, "input", None)
    names = list(wanted) if isinstance(wanted, dict) else list(outputs)
    missing = [name for name in names if name not in outputs]
    if missing:
        raise BadInput(
            f"the model expects the inputs {', '.join(map(repr, missing))}, which are not among the transform's "
            f"outputs: {', '.join(outputs)}"
        )
    return module, names


def _is_keras(model: Any) -> bool:
    return hasattr(model, "variables") and hasattr(model, "trainable_weights")


def _call(model: Any, values: Mapping[str, Any]) -> Any:
    return model(values, training=False) if _is_keras(model) else model(values)


def _raw_specs(inputs: Mapping[str, str], arguments: Mapping[str, str]) -> dict[str, Any]:
    """Returns the tensor specs of a function of raw features, by argument."""
    import tensorflow as tf

    return {
        arguments[name]: tf.TensorSpec([None, *row_shape(dtype)], split_dtype(dtype)[0], name=arguments[name])
        for name, dtype in inputs.items()
    }


def parsing_spec(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Returns the specs with which ``tf.io.parse_example`` parses inputs; missing values are as in Parquet."""
    import tensorflow as tf

    def parsed(dtype: str) -> Any:
        values, width = split_dtype(dtype)
        default = {"float32": float("nan"), "string": ""}.get(values)
        return tf.io.FixedLenFeature(row_shape(dtype), values, default if width is None else [default] * width)

    return {name: parsed(dtype) for name, dtype in inputs.items()}


def served_outputs(found: Any, target: Target) -> dict[str, Any]:
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
    outputs: dict[str, Any] = {}
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


def _served_head(result: Any, target: Target) -> dict[str, Any]:
    """Returns the outputs for one label, by name."""
    import tensorflow as tf

    shape = result.shape
    width = 1 if shape.rank == 1 else shape[1] if shape.rank == 2 else None
    classes = len(target.classes or ())
    if width not in {REGRESSION: (1,), BINARY: (1, 2)}.get(target.problem, (classes,)):
        expected = "[batch, classes]" if target.problem == MULTICLASS else "[batch] or [batch, 1]"
        of = "the label is a number" if target.problem == REGRESSION else f"there are {classes or 2} classes"
        raise BadInput(f"the model's output has shape {shape}, but {of}; expected {expected}")
    numbers = tf.cast(result, tf.float32)
    if target.problem == MULTICLASS:
        return {OUTPUTS[MULTICLASS]: numbers, CLASS: tf.gather(tf.constant(target.classes), tf.argmax(result, axis=1))}
    one = tf.reshape(numbers, [-1]) if width == 1 else numbers[:, 1]
    return {OUTPUTS[target.problem]: one}


def _inputs_of(output: Any, features: Mapping[str, Any], effects: Iterable[Any]) -> tuple[str, ...]:
    """Returns the features that a tensor, or an effect beside it (an assertion), depends on.

    Functions that are called count as using all of their arguments.
    """
    waiting, seen = [output.op, *effects], set[str]()
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return tuple(name for name, tensor in features.items() if tensor.op.name in seen)


def _output_specs(outputs: Any, constants: Constants, name: str) -> dict[str, OutputSpec]:
    import tensorflow as tf

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
    """Returns the error and the line of the user's code that caused it."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(preprocess, "__code__", None)
    folder = str(Path(code.co_filename).parent) if code else ""
    own = [frame for frame in frames if folder and frame.filename.startswith(folder)]
    frame = (own or list(frames))[-1]
    text = str(error).strip()
    return f"{type(error).__name__} at {frame.filename}, line {frame.lineno} ({frame.line}): {text}"
