"""Writes studies as a search would, through the contract: for tests of the pages, the web API and the terminal."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.search import IntUniform, LogUniform, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.search.space import space_to_dict
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder

SPACE = {
    "lr": LogUniform(1e-4, 1e-2),
    "units": IntUniform(16, 128, step=16),
    "dropout": [0.2, 0.5],
    "optimizer": ["adam", "sgd"],
}
_BEGAN = "2026-11-20T10:{:02}:{:02}+00:00"


def write_study(store: ArtifactStore, dag_id: str, name: str, trials: int, **fields: Any) -> StudyFolder:
    """Writes a study of a task ``search``.

    Every seventh trial is pruned, every thirteenth has failed; of a ``running`` study the last two run.

    Args:
        store: Where.
        dag_id: The DAG.
        name: The study's name.
        trials: How many trials there are.
        fields: Of :class:`StudyRecord`, other than usual; ``metrics`` may be two.

    Returns:
        The study's folder.
    """
    metrics = fields.get("metrics", ["eval_auc"])
    running = fields.get("state", "complete") == "running"
    drawn = random.Random(0)
    made = [_trial(number, drawn, len(metrics)) for number in range(trials)]
    if running:
        made[-2:] = [
            replace(each, state="running", values=(), reason="", ended=None, seconds=None) for each in made[-2:]
        ]
    complete = [each for each in made if each.state == "complete"]
    best = max(complete, key=lambda each: each.values[0]) if complete else None
    counts = {state: sum(each.state == state for each in made) for state in ("complete", "pruned", "failed", "running")}
    record = StudyRecord(
        **{
            "name": name,
            "dag_id": dag_id,
            "task_id": "search",
            "run_id": name,
            "state": "complete",
            "program": "flights.model:train",
            "space": space_to_dict(SPACE),
            "metrics": metrics,
            "directions": ["maximize", "minimize"][: len(metrics)],
            "sampler": "tpe",
            "pruner": "none" if len(metrics) > 1 else "asha",
            "trials": trials + 20 if running else trials,
            "parallel": 2,
            "seed": 0,
            "started": _BEGAN.format(0, 0),
            "ended": None if running else _BEGAN.format(59, 0),
            "base": "0" * 64,
            "counts": {state: count for state, count in counts.items() if count},
            "done": trials - counts["running"],
            **({} if best is None else {"best": best.number, "best_values": best.values, "best_params": best.params}),
            **fields,
        }
    )
    folder = study_folder(store, dag_id, record.task_id, name)
    folder.write(record)
    for each in made:
        if each.state == "failed":
            folder.write_log(each.number, f"Traceback (most recent call last):\n  …\n{each.reason}")
    folder.write_trials(made, range(trials))
    return folder


def _trial(number: int, drawn: random.Random, metrics: int) -> TrialRecord:
    params = {
        "lr": 10 ** drawn.uniform(-4, -2),
        "units": drawn.randrange(16, 129, 16),
        "dropout": drawn.choice([0.2, 0.5]),
        "optimizer": drawn.choice(["adam", "sgd"]),
    }
    auc = 0.75 - 0.05 * (math.log10(params["lr"]) + 3) ** 2 + params["units"] / 4000 + drawn.gauss(0, 0.005)
    state = "failed" if number % 13 == 12 else "pruned" if metrics == 1 and number % 7 == 6 else "complete"
    seconds = params["units"] / 10
    return TrialRecord(
        number=number,
        state=state,
        params=params,
        values=([auc, seconds] if metrics > 1 else [auc]) if state == "complete" else [],
        reason={
            "failed": "ValueError: loss is nan at step 12; expected a finite number",
            "pruned": "pruned at step 3: eval_auc 0.61 is below the best half of the trials",
        }.get(state, ""),
        started=_BEGAN.format(number // 60 % 60, number % 60),
        ended=_BEGAN.format((number + 9) // 60 % 60, (number + 9) % 60),
        seconds=seconds,
        key=f"{number:064x}",
        run_id="manual__2026-11-20",
        training=None,
    )
