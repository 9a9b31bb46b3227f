"""The state that differs between ranks: random generators, metrics so far, variables that differ from rank 0's.

In a graph, the counters of TensorFlow's stateful random operations (``tf.random.normal``, ``tf.nn.dropout``) are in its
kernels and cannot be saved. Keras's layers and ``keras.random``, ``tf.random.Generator``, NumPy's and Python's own
generators, and these operations outside of a graph, continue exactly.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.generator_states import restore_generators, save_generators
from airflow_hops.ml.training.keras import rank_variables

# gather_rank_states() is a collective at a checkpoint: broadcast rank 0's checksums of the shared variables, add those
# that differ here to the own state, allgather the states with their lengths. Rank 0 writes them; each rank restores its
# own by number. With another number of ranks they are not restored, because the shards differ, too.

_LENGTH_BYTES = 8
_EAGER = "eager"


def seed_rank(seed: int, rank: int) -> None:
    """Seeds all generators of a rank, differently on each rank, so that ranks drop out different units."""
    keras.utils.set_random_seed(seed + rank)
    tf.random.set_global_generator(_GeneratorAtFirstUse(seed + rank))


class _GeneratorAtFirstUse:
    """A ``tf.random.Generator`` that is created at its first use, because creating it starts TensorFlow."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def _generator(self) -> tf.random.Generator:
        with tf.init_scope():  # creates its variable outside of a function that is being traced
            return tf.random.Generator.from_seed(self._seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def gather_rank_states(model: object, optimizer: object) -> tuple[bytes, ...]:
    """Returns the states of all ranks, by rank; every rank must call it."""
    own = _own_variables(model)
    if not hvd.is_initialized() or hvd.size() == 1:
        return (_capture(own),)
    shared = _shared_variables(model, optimizer)
    if shared:
        mine = np.array([zlib.crc32(np.ascontiguousarray(v.numpy()).data) for v in shared.values()], np.int64)
        first = hvd.broadcast(tf.constant(mine), root_rank=0, name="hops_first_rank_variables").numpy()
        own |= {name: shared[name] for name, differs in zip(shared, mine != first, strict=True) if differs}
    state = _capture(own)
    framed = np.frombuffer(len(state).to_bytes(_LENGTH_BYTES, "little") + state, np.uint8)
    every = hvd.allgather(tf.constant(framed), name="hops_rank_states").numpy().tobytes()
    states, position = [], 0
    while position < len(every):
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(every[position:begin], "little")
        states.append(every[begin:position])
    return tuple(states)


def restore_rank_state(state: bytes, model: object, optimizer: object = None) -> None:
    """Restores a state of :func:`gather_rank_states`, except variables missing or reshaped in the model."""
    variables = {**_own_variables(model), **_shared_variables(model, optimizer)}
    arrays, eager = restore_generators(state), _eager_generator()
    if _EAGER in arrays and eager is not None:
        eager.setstate((3, tuple(int(word) for word in arrays[_EAGER]), None))
    for name, values in arrays.items():
        if name in variables and tuple(variables[name].shape) == values.shape:
            variables[name].assign(values)


def further_variables(model: keras.Model, optimizer: Any = None) -> list[Any]:
    """Returns the variables of optimizers, metrics and generators that the model's layers have as attributes.

    They may be in lists and dicts. Left out are those of the model itself, its metrics, and its optimizer.
    """
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    known = [*model.variables, *_own_variables(model).values(), *(optimizer.variables if optimizer is not None else ())]
    seen = {id(each) for variable in known for each in (variable, getattr(variable, "_value", variable))}
    result = []
    for layer in model._flatten_layers():
        for variable in _variables_in([*vars(layer).values()]):
            same = {id(variable), id(getattr(variable, "_value", variable))}
            if not same & seen:
                result.append(variable)
            seen |= same
    return result


def _variables_in(value: object) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for each in [*value.values()] if isinstance(value, dict) else value:
            yield from _variables_in(each)
    elif isinstance(value, keras.Variable | tf.Variable):
        yield value
    elif isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
        yield value.state
    elif isinstance(value, keras.metrics.Metric | keras.optimizers.Optimizer):
        yield from value.variables


def _capture(variables: Mapping[str, Any]) -> bytes:
    arrays = {name: variable.numpy() for name, variable in variables.items()}
    eager = _eager_generator()
    if eager is not None:
        arrays[_EAGER] = np.array(eager.getstate()[1], np.uint64)
    return save_generators(arrays)


def _eager_generator() -> random.Random | None:
    """Returns the generator of the seeds of TensorFlow's random operations outside of a graph."""
    from tensorflow.python.eager.context import context

    generator: random.Random | None = getattr(context(), "_rng", None)  # none before the first seed
    return generator


def _own_variables(model: keras.Model) -> dict[str, Any]:
    """Returns the state that differs by rank: random layers, generators, and metrics."""
    from keras.src.random.seed_generator import global_seed_generator

    weights = {id(variable) for variable in model.weights}
    seeds = [variable for variable in model.variables if id(variable) not in weights]
    return {
        **{f"seed-{i}": variable for i, variable in enumerate(seeds)},
        **{f"metric-{i}": variable for i, variable in enumerate(model.metrics_variables)},
        "tensorflow": tf.random.get_global_generator().state,
        "keras": global_seed_generator().state,
    }


def _shared_variables(model: keras.Model, optimizer: Any) -> dict[str, Any]:
    """Returns variables of the model and its optimizer that may temporarily differ by rank."""
    result = rank_variables(model) if optimizer is None else [*model.non_trainable_weights, *optimizer.variables]
    result += further_variables(model, optimizer)
    seeds = {id(variable) for variable in _own_variables(model).values()}
    return {f"shared-{i}": variable for i, variable in enumerate(result) if id(variable) not in seeds}
