"""Clock of the exchange of gradients in ``DistributedDataParallel``."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from airflow_hops.core.errors import BadInput


class ExchangeClock:
    """Measures how long a rank waits for the average of its gradients, within a ``with`` block.

    Args:
        model: The model within ``DistributedDataParallel``.

    Raises:
        BadInput: it is another model, or ranks wait for each other outside of the exchange of gradients.

    Attributes:
        model: The model.
        exchanges: Number of backward passes that exchanged gradients.
    """

    # A backward pass ends as follows: the last gradient of this rank (the hook begins the measurement), then the
    # engine's callbacks in the order in which they were queued. DistributedDataParallel queues its own, which waits for
    # the averages, when it gets the last gradient, after the hook. So the hook queues one that queues another, which is
    # then last. A GPU works behind the program: it notes both times itself, by events of its stream.

    def __init__(self, model: object) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(model, DistributedDataParallel):
            raise BadInput(
                f"the model is a {type(model).__name__}, expected the model within "
                "torch.nn.parallel.DistributedDataParallel, whose exchange of gradients tells the ranks' speeds"
            )
        name = next((n for n, m in model.named_modules() if isinstance(m, torch.nn.SyncBatchNorm)), None)
        if name is not None:
            raise BadInput(
                f"the model has SyncBatchNorm ({name!r}), in which ranks wait for each other before they "
                "have gradients, so that all seem equally fast; use BatchNorm, or context.batches"
            )
        self.model, self.exchanges = model, 0
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._is_on_gpu = any(each.is_cuda for each in self._parameters)
        self._seconds, self._pending = 0.0, deque[tuple[Any, Any]]()

    def __enter__(self) -> ExchangeClock:
        from torch.autograd.graph import register_multi_grad_hook

        self._hook = register_multi_grad_hook(self._parameters, self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def seconds(self) -> float:
        """Returns the seconds so far from this rank's last gradient until all ranks' averages."""
        self.synchronize()
        self._add_pending()
        return self._seconds

    def synchronize(self) -> None:
        """Waits until the GPU has done what the step asked for."""
        import torch

        if self._is_on_gpu:
            torch.cuda.synchronize()

    def _begin(self, gradients: object) -> None:
        from torch.autograd import Variable

        if self.model.require_backward_grad_sync:  # false within no_sync()
            began, queue = self._now(), Variable._execution_engine.queue_callback
            queue(lambda: queue(lambda: self._end(began)))

    def _end(self, began: object) -> None:
        self.exchanges += 1
        self._pending.append((began, self._now()))
        self._add_pending()

    def _now(self) -> object:
        import torch

        if not self._is_on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add_pending(self) -> None:
        """Adds the exchanges that have ended."""
        while self._pending and (not self._is_on_gpu or self._pending[0][1].query()):
            began, ended = self._pending.popleft()
            self._seconds += began.elapsed_time(ended) / 1000 if self._is_on_gpu else ended - began
