"""Training functions of searches: trials of milliseconds, without a model."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow_hops.hops import TrainContext


def parabola(context: TrainContext, x: float, y: float = 0.0) -> dict[str, Any]:
    """Has its best value at (1, 0)."""
    note(context, x=x)
    for step in range(context.params.get("steps", 0)):
        context.report(step, loss=(x - 1) ** 2 + y**2 + 1 / (step + 1))
    time.sleep(context.params.get("sleeps_s", 0.0))
    return {"loss": (x - 1) ** 2 + y**2, "distance": abs(x)}


def by_context(context: TrainContext) -> float:
    """Takes its parameters from the context, and returns one number."""
    return (context.params["x"] - 1) ** 2


def stuck(context: TrainContext, x: float) -> float:
    """Reports once, then sleeps with a child of its own, unless x is good."""
    note(context, x=x, pid=os.getpid())
    context.report(1, loss=x)
    if x > 5:
        time.sleep(600)
    return x


def heeding(context: TrainContext, x: float) -> float:
    """Waits for the stop where x is large; then saves its state, and returns, unless it is too large.

    Where x is 8, it does not say that it heeds a stop.
    """
    if x != 8:
        context.should_stop()
    context.report(1, loss=x)
    if x == 8:
        time.sleep(600)
    while x > 5 and (x > 9 or not context.should_stop()):
        time.sleep(0.01)
    note(context, x=x)
    return x


def patient(context: TrainContext, x: float) -> float:
    """Waits where x is large until three other trials have begun, for a minute at most."""
    note(context, x=x)
    deadline = time.monotonic() + 240
    while x > 1 and time.monotonic() < deadline and len(Path(context.params["notes"]).read_text().split("\n")) < 5:
        time.sleep(0.05)
    return x


def deadly(context: TrainContext, x: int) -> int:
    """Kills the search once, at x = 3: the parent of what starts the trial of this rank."""
    note(context, x=x)
    marker = Path(context.params["notes"] + ".killed")
    if x == 3 and not marker.exists():
        marker.touch()
        pid = os.getpid()
        for _ in range(3):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, 9)
        time.sleep(600)
    return x


def failing(context: TrainContext, x: int) -> Any:
    """Fails in several ways."""
    match x:
        case 0:
            return {"loss": 0.0, "ratio": float("nan"), "count": 10**400}
        case 1:
            raise ValueError("x is 1")
        case 2:
            os.kill(os.getpid(), 9)
        case 3:
            return float("nan")
        case 6:
            time.sleep(600)
    raise OSError("something else")


def note(context: TrainContext, **facts: Any) -> None:
    """Adds a line to the file that the parameter ``notes`` names."""
    if "notes" in context.params:
        with Path(context.params["notes"]).open("a") as stream:
            stream.write(f"{time.time()} {facts}\n")


def conditional(trial: Any) -> dict[str, Any]:
    """A space: how many units there are depends on the kind of layers."""
    kind = trial.suggest_categorical("kind", ["flat", "deep"])
    if kind == "flat":
        return {"x": trial.suggest_float("x", 0, 2)}
    return {"x": trial.suggest_float("x", 0, 2), "y": trial.suggest_float("y", 0, 1)}


def dependent(trial: Any) -> None:
    """A space whose bounds depend on another parameter."""
    trial.suggest_int("a", 1, 3)
    trial.suggest_int("b", 1, 10 * trial.params["a"])


def tree(context: TrainContext, leaf: int, depth: int = 3) -> Any:
    """A decision tree, whose accuracy it reports."""
    from sklearn.tree import DecisionTreeClassifier

    rows, held_out = context.table("train"), context.table("eval")
    model = DecisionTreeClassifier(min_samples_leaf=leaf, max_depth=depth, random_state=context.seed)
    model.fit(rows.matrix(), rows.labels)
    context.report(1, eval_accuracy=model.score(held_out.matrix(), held_out.labels))
    return model


def no_space(trial: Any) -> int:
    """No parameters."""
    return 3


def equal(trial: Any) -> None:
    """Suggests choices that are equal in Python."""
    trial.suggest_categorical("x", [1, 1.0])
