"""Trainings whose gang changes: real ranks, killed or hanging at given places, and what came of it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import keras
from training_functions import compiled

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.hops.context import TrainContext
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement
from airflow_hops.runtime.gang.elastic import Elastic, run_elastic_gang
from airflow_hops.runtime.train import Training, train_model
from airflow_hops.runtime.train.program import Program


def run_all(context: StepContext) -> dict[str, Any]:
    """One training after the other; a dictionary by scenario."""
    at = {"epoch": 1, "batch": 5}
    return {
        "shrinks": _outcome(
            context,
            "shrinks",
            3,
            Elastic(1, rejoins=0),
            accidents={"1": {**at, "how": "kill"}, "2": {"epoch": 2, "batch": 5, "how": "hang"}},
            epochs=4,
            stall_timeout_s=25,
        ),
        "joins": _outcome(
            context,
            "joins",
            2,
            Elastic(1, cooldown_s=0.2),
            accidents={"0": {**at, "how": "kill"}},
            wait_for_size=2,
            fits=2,
        ),
        "replaced": _outcome(
            context,
            "replaced",
            2,
            Elastic(1, cooldown_s=0),
            accidents={"1": {**at, "how": "kill"}},
            checkpoint_every_steps=2,
        ),
        "undisturbed": _outcome(context, "undisturbed", 2, None),
        "too_few": _outcome(
            context,
            "too_few",
            3,
            Elastic(2, rejoins=0),
            accidents={"1": {**at, "how": "kill"}, "2": {**at, "how": "kill"}},
        ),
        "bad_input": _outcome(
            context, "bad_input", 2, Elastic(1), accidents={"1": {"epoch": 0, "batch": 1, "how": "bad_input"}}
        ),
    }


def all_at_once(context: StepContext) -> dict[str, Any]:
    """A gang whose ranks all die at the same moment."""
    meeting = context.scratch / "meeting"
    meeting.mkdir()

    def work(placement: Placement, channel: Channel) -> None:
        (meeting / str(placement.rank)).touch()
        while len(list(meeting.iterdir())) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        elastic = Elastic(1, rejoins=0)
        return {"result": run_elastic_gang(work, 3, elastic=elastic, logs=context.scratch, launcher=LocalRanks(3))}
    except HopsError as error:
        return {"error": str(error), "type": type(error).__name__}


def refuse(context: StepContext) -> dict[str, str]:
    """Bounds that contradict one another, and a launcher whose ranks cannot go on alone."""

    class OtherRanks(LocalRanks):
        elastic = False

    return {
        "min_np": _refusal(LocalRanks(3), 2, Elastic(3)),
        "max_np": _refusal(LocalRanks(3), 2, Elastic(1, 1)),
        "no_number": _refusal(LocalRanks(3), 2, Elastic(0)),
        "slots": _refusal(LocalRanks(3), 2, Elastic(1, 4)),
        "launcher": _refusal(OtherRanks(3), 2, Elastic(1)),
    }


def train(context: TrainContext) -> keras.Model:
    """Trains, with accidents."""
    model = compiled(context)
    context.fit(model, epochs=context.params["epochs"], batch_size=100, callbacks=[Accidents(context)])
    for _ in range(1, context.params.get("fits", 1)):
        context.fit(model, epochs=1, batch_size=100)
    return model


class Accidents(keras.callbacks.Callback):
    """What params say happens to a process, known by the number that it was started with."""

    def __init__(self, context: TrainContext) -> None:
        super().__init__()
        self._context = context
        member = context.elasticity.member if context.elasticity is not None else context.rank
        self._accident = context.params.get("accidents", {}).get(str(member))
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The second epoch of fewer ranks gives one that is to join the time to be woken."""
        self._epoch = epoch
        if epoch > 1 and self._context.size < self._context.params.get("wait_for_size", 0):
            time.sleep(1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The accident."""
        accident = self._accident
        if accident is None or (accident["epoch"], accident["batch"]) != (self._epoch, batch):
            return
        print("an accident is about to happen", flush=True)
        if accident["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if accident["how"] == "bad_input":
            raise BadInput("column 'x' is missing")
        time.sleep(120)


def _outcome(
    context: StepContext,
    name: str,
    ranks: int,
    elastic: Elastic | None,
    *,
    stall_timeout_s: float = 60,
    checkpoint_every_steps: int = 0,
    epochs: int = 3,
    **params: Any,
) -> dict[str, Any]:
    import psutil

    output = context.scratch / name
    output.mkdir()
    training = Training(
        program=Program(function="elastic_checks:train"),
        examples=context.store.local(context.input("examples")),
        output=output,
        params={"epochs": epochs, **params},
        ranks=ranks,
        elastic=elastic,
        checkpoint_every_steps=checkpoint_every_steps,
        guard_every_steps=2,
        stall_timeout_s=stall_timeout_s,
        launcher=LocalRanks(ranks),
        code_paths=context.spec.code_paths,
    )
    try:
        outcome: dict[str, Any] = train_model(training)
    except HopsError as error:
        outcome = {"error": str(error), "type": type(error).__name__}
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    return {**outcome, "left": children, "logs": sorted(path.name for path in output.glob("logs/*"))}


def _refusal(launcher: LocalRanks, np: int, elastic: Elastic) -> str:
    try:
        elastic.place(launcher, np)
    except BadInput as error:
        return str(error)
    return "not refused"
