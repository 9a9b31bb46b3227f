"""One way to search, in the runtime environment: ``python -m …search_ways WAY FOLDER SECONDS TRIALS``.

Prints a line of JSON with its figures last.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

PARALLEL = 2
SEED = 1
_LAST = 200
"""Trials of a large study whose recording is timed: each is written when it begins and when it ends."""


def train(context: Any, x: float) -> float:
    """The trial: waits, as for a GPU, and answers."""
    time.sleep(context.params["seconds"])
    return (x - 1) ** 2


def ours(folder: Path, seconds: float, trials: int) -> dict[str, float]:
    """The search stage, from its first trial to its end; what it takes before is its start-up."""
    from airflow_hops.core.steps.protocol import Output, StepSpec
    from airflow_hops.core.training.options import SINGLE, TrainingOptions
    from airflow_hops.extensions.experiments.core.search import SearchOptions, Uniform
    from airflow_hops.extensions.experiments.core.studies import study_folder
    from airflow_hops.extensions.experiments.ml.search.stage import run
    from airflow_hops.ml.step.context import StepContext

    training = TrainingOptions(train=f"{__spec__.name}:train", strategy=SINGLE, np=1, params={"seconds": seconds})
    options = SearchOptions(
        training=training.to_dict(),
        space={"x": Uniform(-5, 5)},
        metrics=["loss"],
        directions=["minimize"],
        trials=trials,
        parallel=PARALLEL,
        seed=SEED,
    )
    store = (folder / "store").as_uri()
    scratch = folder / "scratch"
    scratch.mkdir()
    context = StepContext(StepSpec("search", "", output=Output(f"{store}/model", "model"), store=store), scratch)
    cpu_s = _cpu_s()
    run(context, **options.to_dict())
    study = study_folder(context.store, "notebook", "step", "interactive")
    record, found = study.read(), study.trials()
    assert record is not None and record.counts == {"complete": trials}, record
    first, last = (datetime.fromisoformat(time or "") for time in (found[0].started, max(t.ended or "" for t in found)))
    return {"seconds": (last - first).total_seconds(), "cpu_s": _cpu_s() - cpu_s}


def optuna(folder: Path, seconds: float, trials: int, workers: int = 1) -> dict[str, float]:
    """Bare Optuna: one process with its study in memory, or several that share a journal on disk."""
    began, cpu_s = time.monotonic(), _cpu_s()
    if workers == 1:
        _optimize("", seconds, trials)
    else:
        with ProcessPoolExecutor(workers) as pool:
            ready = [pool.submit(time.sleep, 0.5) for _ in range(workers)]  # the processes are there
            assert all(each.result() is None for each in ready)
            began = time.monotonic()
            shares = [trials // workers + (number < trials % workers) for number in range(workers)]
            for done in [pool.submit(_optimize, str(folder / "journal"), seconds, share) for share in shares]:
                done.result()
    return {"seconds": time.monotonic() - began, "cpu_s": _cpu_s() - cpu_s}


def _optimize(journal: str, seconds: float, trials: int) -> None:
    import optuna as library
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    library.logging.set_verbosity(library.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(journal)) if journal else None
    sampler = library.samplers.TPESampler(seed=SEED)
    study = library.create_study(storage=storage, study_name="s", load_if_exists=True, sampler=sampler)

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", -5, 5)
        time.sleep(seconds)
        return float((x - 1) ** 2)

    study.optimize(objective, n_trials=trials)


def large(folder: Path, seconds: float, trials: int) -> dict[str, float]:
    """A study of so many trials: written, read, and gone on with."""
    from dataclasses import replace

    from airflow_hops.core.artifacts.artifact import Producer
    from airflow_hops.core.store import ArtifactStore
    from airflow_hops.core.times import now
    from airflow_hops.extensions.experiments.core.search import IntUniform, LogUniform, SearchOptions, Uniform
    from airflow_hops.extensions.experiments.core.studies import study_folder
    from airflow_hops.extensions.experiments.ml.search.attributes import new_study
    from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy

    space = {"lr": LogUniform(1e-5, 1e-1), "dropout": Uniform(0, 0.5), "units": IntUniform(16, 512), "act": ["a", "b"]}
    options = SearchOptions(
        training={}, space=space, metrics=["loss"], directions=["minimize"], trials=trials, sampler="random"
    )
    found = study_folder(ArtifactStore(str(folder / "large")), "d", "t", "s")
    record = new_study(options, "m:f", "base", Producer("d", "s", "t"))
    study = OptunaStudy(found, record, options)
    last = min(_LAST, trials)
    for number in range(trials):
        if number == trials - last:
            study.save()
            began = time.monotonic()
        trial = study.ask()
        assert trial is not None
        study.put(trial)
        for step in range(10):
            study.report(number, step, 1 / (step + 1))
        if number >= trials - last:
            study.save()
        value = trial.params["lr"] + trial.params["dropout"]
        study.put(replace(trial, state="complete", values=[value], ended=now(), seconds=1.0))
        if number >= trials - last:
            study.save()
    study.save()
    figures = {"record_s_a_trial": (time.monotonic() - began) / last}
    began = time.monotonic()
    assert len(found.trials()) == trials and found.read() is not None
    figures["read_s"] = time.monotonic() - began
    for sampler in ("random", "tpe"):
        began = time.monotonic()
        again = OptunaStudy(found, record, replace(options, sampler=sampler))
        figures[f"{sampler}_go_on_s"] = time.monotonic() - began
        began = time.monotonic()
        for _ in range(10):
            proposed = again.ask()
            assert proposed is not None
            again.put(replace(proposed, state="complete", values=[0.0]))
        figures[f"{sampler}_s_a_proposal"] = (time.monotonic() - began) / 10
    return figures


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    way, folder, seconds, trials = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    call = {"ours": ours, "optuna": optuna, "optuna_processes": optuna, "large": large}[way]
    more = {"workers": PARALLEL} if way == "optuna_processes" else {}
    print(json.dumps(call(folder, seconds, trials, **more)))
