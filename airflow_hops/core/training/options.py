"""Options of a training, for the operator, the step and each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_hops.core.json_fields import StepOptions

HOROVOD: Final = "horovod"
MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
PARAMETER_SERVER = "parameter_server"
SINGLE = "single"

HOROVOD_MISSING = (
    "it is not in {runtime}; build it with 'airflow hops runtime create --horovod' on every machine that runs steps "
    "(some minutes; needs g++, make and Python's header files), or train in one process with TrainOperator"
)
"""Advice of the doctor and of trainings on several ranks, with the runtime environment's folder to insert."""


@dataclass(frozen=True)
class TrainingOptions(StepOptions):
    """Options of a training, as the arguments of the training operators; JSON values.

    Attributes:
        shipped: Instead of ``train``, a function's source: :func:`~airflow_hops.ml.step.function.call_shipped`.
        strategy: How the ranks work together; ``single`` for one process, or a registered one
            (:class:`airflow_hops.ml.training.stage.rank_group.RankGroup`).
        any_value: Whether a function may return any JSON value instead of a model, as shipped ones may.
        export: Whether to write the model; if not, the training's summary has an empty description.
        champion_version: Version of the model ``continue_from`` that is the step's input; None if there was none.
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
    grace_s: float = 3.5
    tolerance: float = 1e-3
    fall_back: bool = False
    any_value: bool = False
    export: bool = True
    continue_from: str | None = None
    champion_version: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "script_args", tuple(self.script_args))  # JSON has lists
