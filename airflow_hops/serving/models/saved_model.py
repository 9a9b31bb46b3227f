"""Serves TensorFlow SavedModels with a session in this process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
from tensorflow.core.protobuf.config_pb2 import CallableOptions, ConfigProto
from tensorflow.python.client.session import Session
from tensorflow.python.framework import ops
from tensorflow.python.framework.errors_impl import OpError
from tensorflow.python.saved_model import loader_impl

from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.serving.errors import ServingError, check_deadline, code_of, invalid_argument
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.memory import set_imports_apart
from airflow_hops.serving.models.servable import Signature

# TensorFlow 2.16: a deadline interrupts a run only if it uses its own thread pool, which is slow for short runs. A
# signature therefore runs in the request's thread without a time-out until one run took longer than _LONG_S; from then
# on it runs in the pool with a time-out, until a run is short again. A race between requests only makes one run use the
# other way.

# Maximum number of cached callables: each output filter has its own, and clients choose the filters.
_MAX_CALLABLES = 64
# If a run takes longer than this, the deadline can end the next run of the signature.
_LONG_S = 0.1
# Later deadlines are ignored.
_LONGEST_S = 3600.0
_LOOPS = frozenset({"Enter", "For", "IteratorGetNext", "ReduceDataset", "StatelessWhile", "While"})


class SavedModelServable(LocalServable):
    """A SavedModel.

    The TensorFlow 1 loader opens every SavedModel that TensorFlow 2 and 1 write. Calls through
    ``_make_callable_from_options`` take 20 microseconds, those of a ConcreteFunction 130.

    Deadlines end only the runs of graphs with loops and of signatures whose last run was long: TensorFlow can interrupt
    only runs in its own threads, which take several times as long for short runs.

    Raises:
        ServingError: The SavedModel does not load; the message is TensorFlow's.
    """

    def __init__(self, model: str, version: int, path: str | os.PathLike[str], options: ModelOptions) -> None:
        set_imports_apart()
        folder = os.fspath(path)
        self._in_own_thread = not options.inter_op_threads
        self._callables: dict[tuple[str, tuple[str, ...], int], Any] = {}
        self._long: set[str] = set()
        graph = ops.Graph()
        session_config = ConfigProto(
            intra_op_parallelism_threads=options.intra_op_threads, inter_op_parallelism_threads=options.inter_op_threads
        )
        self._session = Session(graph=graph, config=session_config)
        try:
            with graph.as_default():
                meta_graph = loader_impl.load(self._session, list(options.tags), folder)
            # The session has its own copy of the graph; Python's objects would only slow down garbage collection.
            ops.dismantle_graph(graph)
            self._has_loops = _has_loops(meta_graph.graph_def)
            definitions = SignatureDefMap()
            for name, definition in meta_graph.signature_def.items():
                if not name.startswith("__saved_model"):
                    definitions.signature_def[name].ParseFromString(definition.SerializeToString())
            super().__init__(model, version, folder, definitions.SerializeToString(), options)
            self.computes_here = self.computes_here and self._in_own_thread and not self._has_loops
            functions = meta_graph.object_graph_def.concrete_functions.values()
            if any(_has_parts(function.canonicalized_input_signature) for function in functions):
                self.signatures = {name: replace(each, batched=frozenset()) for name, each in self.signatures.items()}
        except Exception as error:
            self._session.close()
            raise _load_error(error, folder) from error

    def _free(self) -> None:
        self._callables.clear()
        self._session.close()

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        check_deadline(deadline_s)
        started_s = time.monotonic()
        timeout_ms = self._timeout_ms(signature, deadline_s - started_s)
        try:
            run = self._callables.get((signature.name, aliases, timeout_ms))
            run = run or self._callable(signature, aliases, timeout_ms)
            # TensorFlow 2.16: only scalar strings are not returned as NumPy values.
            return [np.array(value, object) if type(value) is bytes else value for value in run(*feeds)]
        except OpError as error:
            raise ServingError(code_of(error.error_code), error.message) from error
        except (TypeError, ValueError) as error:
            raise invalid_argument(str(error)) from error
        finally:
            if time.monotonic() - started_s > _LONG_S:
                self._long.add(signature.name)
            elif self._long:
                self._long.discard(signature.name)

    def _timeout_ms(self, signature: Signature, left_s: float) -> int:
        """Returns the time limit of a run in milliseconds; 0 for none."""
        if left_s > _LONGEST_S or not (self._has_loops or signature.name in self._long):
            return 0
        # Round to a power of two, since each timeout needs its own callable.
        return int(2 ** math.ceil(math.log2(max(1.0, left_s * 1e3))))

    def _callable(self, signature: Signature, aliases: tuple[str, ...], timeout_ms: int) -> Any:
        options = CallableOptions(
            feed=list(signature.inputs.values()), fetch=[signature.outputs[alias] for alias in aliases]
        )
        options.run_options.timeout_in_ms = timeout_ms
        if self._in_own_thread and not timeout_ms:
            options.run_options.inter_op_thread_pool = -1
        made = self._session._make_callable_from_options(options)
        if len(self._callables) < _MAX_CALLABLES:
            self._callables[signature.name, aliases, timeout_ms] = made
        return made


def _has_loops(graph: Any) -> bool:
    """Returns whether the run time of a graph depends on input values."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(node.op in _LOOPS for nodes in bodies for node in nodes)


def _has_parts(structure: Any) -> bool:
    """Returns whether a function takes ragged or sparse tensors, which are several inputs of different lengths."""
    kind = structure.WhichOneof("kind")
    if kind == "type_spec_value":
        return True
    if kind == "dict_value":
        return any(_has_parts(value) for value in structure.dict_value.fields.values())
    return kind in ("tuple_value", "list_value") and any(map(_has_parts, getattr(structure, kind).values))


def _load_error(error: Exception, folder: str) -> ServingError:
    if isinstance(error, OpError):
        return ServingError(code_of(error.error_code), error.message)
    if isinstance(error, (OSError, RuntimeError)):
        return ServingError(grpc.StatusCode.NOT_FOUND, f"Could not load SavedModel at {folder}: {error}")
    return ServingError(
        grpc.StatusCode.INTERNAL, f"Could not load SavedModel at {folder}: {type(error).__name__}: {error}"
    )
