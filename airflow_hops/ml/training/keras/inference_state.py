"""The state that predictions depend on: a model's weights, and the constants and tables in its traced call.

Layers derive values from rows or from other variables: ``Normalization`` keeps its mean as a tensor, ``Discretization``
its boundaries as an array, ``StringLookup`` its vocabulary in a table. Keras lists none of these among the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.ml.training.digests import Digests, digest


def inference_digests(model: keras.Model, features: object = None) -> Digests:
    """Returns the digests of all values that the predictions of a built Keras 3 or tf_keras model depend on.

    These are its weights, in their order, and by digest: constants, tensors, lookup tables and variables that are not
    weights. The states of random generators are left out: ranks draw their own numbers.

    Args:
        model: The model.
        features: ``tf.TensorSpec``s of its inputs; by default those that it was built with.
    """
    # tf-keras 2.16: counts an adapted vocabulary among the weights; its values are in a table.
    variables = [v for v in model.weights if hasattr(v, "assign")]
    weights = [(f"weight {getattr(v, 'path', None) or v.name}", digest(v.numpy())) for v in variables]
    values = _values_beside_weights(model, _trace(model, features))
    beside = [(name.rpartition("/")[0] or name, digest(*arrays)) for name, arrays in values]
    # Ranks may number their layers differently, and trace in another order.
    return weights + sorted(beside, key=lambda item: item[1])


def adapted_digests(model: keras.Model) -> Digests:
    """Returns digests of the state that must be equal before weights are broadcast: their shapes, and adapted values.

    A mean or variance that a layer adapted is among the weights.
    """
    digests = [("the shapes of the weights", digest(np.array([str(tuple(v.shape)) for v in model.weights], object)))]
    for layer in model._flatten_layers():
        adapted = [getattr(layer, name, None) for name in ("bin_boundaries", "idf_weights_const")]
        adapted += [layer.get_vocabulary()] if hasattr(layer, "get_vocabulary") else []
        values = [np.asarray(value) for value in adapted if value is not None]
        if values:
            digests.append((f"layer {layer.name!r}", digest(*values)))
    return digests


def _trace(model: keras.Model, features: object) -> tf.Graph:
    args, named = (features,), {}
    if features is None and isinstance(model, keras.Model):
        from keras.src.export.export_utils import get_input_signature, make_tf_tensor_spec

        args = keras.tree.map_structure(make_tf_tensor_spec, get_input_signature(model))
    elif features is None:
        args, named = model.save_spec()
    call = tf.function(lambda *args, **named: model(*args, **named, training=False), autograph=False)
    return call.get_concrete_function(*args, **named).graph


def _values_beside_weights(model: keras.Model, graph: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yields constants, captured tensors, variables and lookup tables of a traced call, by operation."""
    from keras.src.random.seed_generator import global_seed_generator

    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    for node in nodes:
        for attribute in node.attr.values():
            if attribute.HasField("tensor"):
                yield node.name, [tf.make_ndarray(attribute.tensor)]
            elif numbers := list(attribute.list.f) or [attribute.f] * attribute.HasField("f"):
                yield node.name, [np.array(numbers)]  # such as the boundaries of a Discretization
    known = [*model.variables, global_seed_generator().state, tf.random.get_global_generator().state]
    known = [v.value if isinstance(v, keras.Variable) else v for v in known]
    passed_over = {id(variable.handle) for variable in known if isinstance(variable, tf.Variable)}
    variables = {id(variable.handle): variable for variable in graph.variables}
    types = {(n.attr["Tin"].type, n.attr["Tout"].type) for n in nodes if n.op == "LookupTableFindV2"}
    for tensor, placeholder in graph.captures:
        name = next((operation.name for operation in placeholder.consumers()), placeholder.name)
        if id(tensor) in variables:
            if id(tensor) not in passed_over:
                yield name, [variables[id(tensor)].numpy()]
        elif tensor.dtype != tf.resource:
            yield name, [np.asarray(tensor.numpy())]
        else:
            for keys, values in _exported(tensor, types):
                order = np.argsort(keys)
                yield name, [keys[order], values[order]]


def _exported(table: object, types: set[tuple[int, int]]) -> Iterator[tuple[Any, Any]]:
    """Yields keys and values of a lookup table of one of these types; yields no values for other resources."""
    for key, value in types:
        try:
            exported = tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=key, Tvalues=value)
        except tf.errors.InvalidArgumentError:
            continue
        yield tuple(each.numpy() for each in exported)
