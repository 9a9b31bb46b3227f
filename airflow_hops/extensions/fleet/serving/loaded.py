"""Models of segments that are in memory: those that were asked last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

DEFAULT_BYTES = 2**28


class LoadedModels(Collector):
    """Models in memory, of all fleets of a process; thread-safe.

    A model that is not there is loaded by the thread that asks first, while others go on; those that ask for the same
    wait for it. The model that nobody asked for the longest leaves first. One that is in use lives until its last user
    is done, and a model larger than the limit is used once.

    Args:
        limit_bytes: Bytes of all models.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        # A model that is being loaded has no bytes yet.
        self._models: OrderedDict[tuple[object, Hashable], tuple[Future[Any], int]] = OrderedDict()
        self._bytes = self._loads = 0
        self._rows: Counter[tuple[str, str]] = Counter()

    def get(self, owner: object, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Returns a model.

        Args:
            owner: The servable, for :meth:`drop`.
            key: Names the model among those of its owner.
            load: Loads it; returns the model and its bytes in memory. What it raises, all who wait get, and the next
                one to ask tries again.
        """
        name, mine = (owner, key), Future[Any]()
        with self._lock:
            future, _ = self._models.setdefault(name, (mine, 0))
            self._models.move_to_end(name)
        if future is not mine:
            return future.result()
        try:
            model, size = load()
        except BaseException as error:
            with self._lock:
                if self._is_there(name, mine):
                    del self._models[name]
            mine.set_exception(error)
            raise
        mine.set_result(model)
        with self._lock:
            self._loads += 1
            if self._is_there(name, mine):  # and not dropped meanwhile
                self._models[name] = mine, size
                self._bytes += size
            while self._bytes > self.limit_bytes:
                self._bytes -= self._models.popitem(last=False)[1][1]
        return model

    def _is_there(self, name: tuple[object, Hashable], future: Future[Any]) -> bool:
        return name in self._models and self._models[name][0] is future

    def drop(self, owner: object) -> None:
        """Frees the models of an owner."""
        with self._lock:
            for name in [name for name in self._models if name[0] is owner]:
                self._bytes -= self._models.pop(name)[1]

    def count_rows(self, model: str, rows_by_state: Counter[str]) -> None:
        """Adds rows that were answered, by the state of their segments."""
        with self._lock:
            for state, rows in rows_by_state.items():
                self._rows[model, state] += rows

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        with self._lock:
            counts, rows = (len(self._models), self._bytes, self._loads), dict(self._rows)
        yield GaugeMetricFamily("hops_fleet_models", "Models of segments in memory.", counts[0])
        yield GaugeMetricFamily("hops_fleet_bytes", "Their bytes.", counts[1])
        yield CounterMetricFamily("hops_fleet_loads", "Loads of models of segments.", counts[2])
        answered = CounterMetricFamily(
            "hops_fleet_rows",
            "Answered rows by the state of their segment; the pooled model answers unknown ones.",
            labels=["model_name", "state"],
        )
        for (model, state), number in sorted(rows.items()):
            answered.add_metric([model, state], number)
        yield answered


MODELS = LoadedModels()
"""Those of this process; the flag ``--fleet_memory_bytes`` sets their limit."""
