"""The options of a training, for the operator, the step and each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.contract.json_fields import StepOptions

AUTO = "auto"
"""Of ``np``: as many ranks of this machine as a measurement finds to be fastest."""

HOROVOD = "horovod"
MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
PARAMETER_SERVER = "parameter_server"
SINGLE = "single"
TORCH = "torch"

OF_TENSORFLOW = (MULTI_WORKER_MIRRORED, PARAMETER_SERVER)
"""Strategies that are TensorFlow's own."""
OF_ANY_FRAMEWORK = (SINGLE, TORCH)
"""Strategies whose function may return an estimator of another framework than Keras."""


@dataclass(frozen=True)
class TrainingOptions(StepOptions):
    """The options of a training; JSON values.

    Attributes:
        train: The user's ``module:function``.
        script: Instead, a Python file next to the DAG that runs as ``__main__``.
        script_args: The script's arguments.
        shipped: Instead, a function's source: :func:`~airflow_hops.ml.step.function.call_shipped`.
        params: Hyperparameters.
        env: Variables for all ranks.
        np: Number of ranks that train.
        seed: Seed of weights and of the order of rows.
        deterministic: Whether the same training gives identical bits: one thread per rank, deterministic operations.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        strategy: How the ranks work together: ``horovod``, ``multi_worker_mirrored`` or ``parameter_server``;
            ``torch`` for ``torch.distributed``; or ``single`` for one process.
        parameter_servers: Number of additional ranks that hold variables.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.
        timeline: Whether Horovod writes its timeline, ``timeline.json`` in the output.
        tensorboard: Whether to run a TensorBoard during the training.
        tolerance: Maximum difference between the exported and the trained estimator.
        fall_back: Whether to store a scikit-learn estimator with skops if its ONNX graph cannot be made or loaded, or
            differs from it.
        any_value: Whether a function may return any JSON value instead of a model, as shipped ones may.
        export: Whether the model is written; of one that is not, the training's summary has an empty description.
    """

    train: str | None = None
    script: str | None = None
    script_args: tuple[str, ...] = ()
    shipped: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    np: int = 2
    seed: int = 0
    deterministic: bool = False
    checkpoint_every_steps: int = 0
    guard_every_steps: int | None = None
    strategy: str = HOROVOD
    parameter_servers: int = 0
    stall_timeout_s: float = 300.0
    timeline: bool = False
    tensorboard: bool = False
    tolerance: float = 1e-3
    fall_back: bool = False
    any_value: bool = False
    export: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "script_args", tuple(self.script_args))  # JSON has lists
