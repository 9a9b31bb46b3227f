"""Runs the train stage in a process of its own, as a step does."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.protocol import parse_line
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.gang import Channel

STEPS = Path(__file__).parents[2] / "steps"
SETTINGS = {
    "champion_version",
    "checkpoint_every_steps",
    "continue_from",
    "deterministic",
    "grace_s",
    "guard_every_steps",
    "np",
    "parameter_servers",
    "seed",
    "stall_timeout_s",
    "strategy",
    "where",
}


@dataclass
class Trainings:
    """Trains; calling it answers the model.

    Attributes:
        store: Where models go.
        folder: For scratch.
        own_process: The fixture of that name.
        lines: What the last training has said.
    """

    store: ArtifactStore
    folder: Path
    own_process: Any
    lines: list[str] = field(default_factory=list)
    progress: list[tuple[float, str, Mapping[str, float]]] = field(default_factory=list)

    def __call__(
        self,
        function: str,
        examples: Artifact,
        *,
        run_id: str | None = None,
        services: Mapping[str, str] | None = None,
        stage: Callable[..., Any] | None = None,
        champion: Artifact | None = None,
        **params: Any,
    ) -> Artifact:
        """Trains with a function; what is no setting of the stage is a hyperparameter.

        Raises:
            HopsError: as the stage; no artifact is left then.
        """
        settings = {"guard_every_steps": 2} | {name: params.pop(name) for name in SETTINGS & set(params)}
        log = Path(tempfile.mkstemp(dir=self.folder)[1])
        values = {"train": function, "params": params, **settings}
        inputs = {"examples": examples, **({} if champion is None else {"champion": champion})}
        environment = dict(os.environ)  # that of a fork is the fork server's
        place = (self.store.root, self.store.storage_options)
        try:
            return self.own_process(_run, environment, place, self.folder, log, run_id, services, inputs, values, stage)
        finally:
            results = [parse_line(line) for line in log.read_text().split("\n")]
            self.lines[:] = [line.text for line in results]
            self.progress[:] = [(line.progress, line.text, line.metrics or {}) for line in results if line.progress]


def _run(
    environment: dict[str, str],
    place: tuple[str, Mapping[str, Any]],
    folder: Path,
    log: Path,
    run_id: str | None,
    services: Mapping[str, str] | None,
    inputs: Mapping[str, Artifact],
    values: dict[str, Any],
    stage: Any,
) -> Artifact:
    from airflow_hops.ml.step.context import RecordHandler
    from airflow_hops.ml.training.stage import run
    from tests.ml.world import World

    os.environ |= environment
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
    logging.basicConfig(handlers=[RecordHandler()], force=True)
    world = World(folder, ArtifactStore(place[0], storage_options=place[1]))
    ids = {"run_id": run_id, "services": services, "code_paths": (str(STEPS),)}
    artifact: Artifact = world.run(stage or run, kind="model", inputs=inputs, **ids, **values)
    return artifact


def transform_examples(
    trainings: Trainings, preprocess: str, inputs: Mapping[str, Artifact], run_id: str | None = None
) -> Artifact:
    """Runs the transform stage in a process of its own, on this machine, whose Spark need not import TensorFlow."""
    place = (trainings.store.root, trainings.store.storage_options)
    artifact: Artifact = trainings.own_process(_transform, place, trainings.folder, preprocess, inputs, run_id)
    return artifact


def _transform(
    place: tuple[str, Mapping[str, Any]],
    folder: Path,
    preprocess: str,
    inputs: Mapping[str, Artifact],
    run_id: str | None,
) -> Artifact:
    from airflow_hops.ml.transform import stage
    from tests.ml.world import World

    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[1] pyspark-shell"
    world = World(folder, ArtifactStore(place[0], storage_options=place[1]))
    artifact: Artifact = world.run(stage, run_id=run_id, inputs=inputs, preprocess=preprocess)
    return artifact


class Messages(Channel):
    """Messages of a rank without a supervisor."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        """Notes a message."""
        self.sent.append({"type": kind, **fields})


def rank_session(examples: Path, folder: Path, *, resumed_from: Any = None, **options: Any) -> Any:
    """A training on this rank of Horovod's, without a gang or a stage; ``rank.channel.sent`` is what it says."""
    import horovod.tensorflow as hvd

    from airflow_hops.ml.features.feature_specs import FeatureSpecs
    from airflow_hops.ml.training.rank import Rank
    from airflow_hops.ml.training.session import Session
    from airflow_hops.ml.training.shares import ExamplesSource

    specs = FeatureSpecs.read(examples / "features.json")
    rank = Rank(hvd.rank(), hvd.size(), hvd.local_rank(), Messages())
    source = ExamplesSource(examples, specs.outputs, specs.target)
    return Session(rank, TrainingOptions(**options), source, folder, resumed_from)


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values in a model's event files, by run and tag."""
    import tensorflow as tf

    events: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").glob("*/events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):  # raises where a file is not whole
            for value in event.summary.value:
                result = (event.step, float(tf.make_ndarray(value.tensor)))
                events.setdefault(f"{path.parent.name}/{value.tag}", []).append(result)
    return events
