"""Transform graph: traces a preprocessing function to a SavedModel, and loads it."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.features.signature_inputs import argument_names, argument_specs, name_inputs

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.types.experimental import ConcreteFunction

SIGNATURE = "serving_default"
_COUNTED = re.compile(r"(__(?:inference|forward)_\w*?)_\d+\b")
OUTPUT_DTYPES = ("float32", "float64", "int32", "int64", "string")

Preprocess = Callable[[dict[str, "tf.Tensor"], Constants], Mapping[str, "tf.Tensor"]]


class _RawFeatures(dict[str, "tf.Tensor"]):
    def __missing__(self, name: str) -> object:
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

    function: ConcreteFunction
    outputs: dict[str, OutputSpec]
    resources: list[object]
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
    values: dict[str, tf.Tensor] = {}
    made: dict[str, tf.Tensor] = {}
    arguments = argument_names(inputs)

    def transform(**tensors: object) -> dict[str, object]:
        features = {feature: tensors[argument] for feature, argument in arguments.items()}
        try:
            # TensorFlow 2.16: resources that it creates for the function (vocabulary tables) must be saved with it.
            with resource_tracker_scope(tracker):
                outputs = preprocess(_RawFeatures(features), constants)
        except Exception as error:
            raise BadInput(f"preprocessing function {name!r} raised {_describe(error, preprocess)}") from error
        specs.update(_output_specs(outputs, constants, name))
        values.update(features)
        made.update({output: tf.identity(tensor) for output, tensor in outputs.items()})
        return dict(made)

    function = tf.function(transform, autograph=False).get_concrete_function(**argument_specs(inputs, arguments))
    # Control outputs include unused lookups, which have no effect, unlike assertions.
    effects = [op for op in function.graph.control_outputs if not op.type.startswith("LookupTable")]
    read = {output: _inputs_of(tensor, values, effects) for output, tensor in made.items()}
    outputs = {output: replace(spec, inputs=read[output]) for output, spec in specs.items()}
    return TracedTransform(function, outputs, list(tracker.resources), arguments)


def load_transform(path: Path) -> Callable[..., dict[str, object]]:
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

    def transform(**features: object) -> dict[str, object]:
        return dict(zip(outputs, run(*(features[name] for name in inputs)), strict=True))

    return transform


def graph_key(path: Path) -> str:
    """Returns a hash of what a saved transform graph computes, the same for each trace of a function by one TensorFlow.

    Names that TensorFlow counts up within a process are left out.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    graph = SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    texts = []
    for function in graph.library.function:
        function.ClearField("attr")
        function.ClearField("arg_attr")
        for node in function.node_def:
            for name in [name for name in node.attr if name == "shared_name" or name.startswith("_")]:
                del node.attr[name]
        texts.append(_COUNTED.sub(r"\1", str(function)))
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def _inputs_of(
    output: tf.Tensor, features: Mapping[str, tf.Tensor], effects: Iterable[tf.Operation]
) -> tuple[str, ...]:
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


def _output_specs(outputs: object, constants: Constants, name: str) -> dict[str, OutputSpec]:
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
