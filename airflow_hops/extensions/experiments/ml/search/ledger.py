"""Record of a running search: its study and trials, in memory and in the store."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store.leases import Lease, LeaseLost
from airflow_hops.core.times import now, seconds_since
from airflow_hops.extensions.experiments.core.search import MAX_INTERMEDIATE, SearchOptions, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder

# The record in the store is the only state of a search: trials (append and replace by number), then the study. It is
# written after changes, at most about once a second, by the search that holds the study's lease; check() before each
# write ends a search whose study was claimed by another one.
# States of a trial: running → complete, pruned, failed or stopped. A trial is recorded as running before it starts, and
# as ended after its output has been stored (Search.ended). After a kill, trials in the state running are run again, up
# to three tries; ended ones are told to a new sampler. A kill therefore repeats the trials that ran at the last save,
# and loses none.

_FIXED = ("space", "metrics", "directions")
_MAX_TRIES = 3
_ANSWER_S = 30.0

log = logging.getLogger(__name__)


class Ledger:
    """Record of a study; :meth:`save` writes its changes.

    Args:
        folder: Its folder in the store.
        study: Initial record of a new study.
        shared: Whether runs of the task share the study; an unshared one restarts if space, code or data differ.
        reuse: Whether trials of an earlier try count after it published its winner; otherwise the study restarts.
        lease: The study's lease, which this search holds.

    Attributes:
        study: The study.
        trials: All trials, by number.
        was_killed: Whether an earlier try of this run was killed.
        begun_s: Seconds since the first try of this run began; 0 after its winner was published.
        was_stopped_by: The person who stopped an earlier try of this run whose winner is not yet published.

    Raises:
        BadInput: the study exists with another space or other metrics.
    """

    def __init__(
        self,
        folder: StudyFolder,
        study: StudyRecord,
        *,
        shared: bool,
        reuse: bool = True,
        lease: Lease | None = None,
    ) -> None:
        self._folder, self._lease = folder, lease
        self.was_killed, self.begun_s = False, 0.0
        self.was_stopped_by: str | None = None
        self.trials: list[TrialRecord] = []
        self._lines: list[str] = []
        self._changed: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._failing_since: float | None = None
        earlier = folder.read()
        differing = [] if earlier is None else _differing(earlier, study)
        if earlier is not None and not shared:
            is_other = differing or earlier.base != study.base
            if is_other or (earlier.published and not reuse):
                why = "is of another space, code or data" if is_other else "is complete, and the cache is off"
                log.info("%s: the study of an earlier try %s; starting again", folder.uri, why)
                folder.clear()
                earlier = None
        if earlier is None:
            self.study, self._counted_from = study, 0
            return
        if differing:
            recorded, actual = (json.dumps(each.to_dict()[differing[0]]) for each in (earlier, study))
            raise BadInput(
                f"study {study.name!r} ({folder.uri}) has a different {differing[0]} from this search's: {recorded}, "
                f"found {actual}; give this search another name with study=, or the same space, metrics and directions"
            )
        self.trials = folder.trials()
        self._lines = [json.dumps(trial.to_dict()) for trial in self.trials]
        self._counts.update(trial.state for trial in self.trials)
        goes_on = earlier.run_id == study.run_id
        first = earlier.first_trial if goes_on else len(self.trials)
        # Clearing the task repeats failed and stopped trials; a retry after a kill counts them as run.
        self.was_killed = goes_on and earlier.state == "running"
        self._counted_from = first if self.was_killed else len(self.trials)
        self.study = replace(
            study, first_trial=first, started=earlier.started if goes_on else study.started, pareto=earlier.pareto
        )
        self._count()
        if goes_on and not earlier.published:
            # A person may clear the task of an ended search long after it.
            until = 0.0 if self.was_killed or earlier.ended is None else seconds_since(earlier.ended)
            self.begun_s = seconds_since(earlier.started) - until
        if goes_on and earlier.state == "stopped" and not earlier.published and self.best is not None:
            self.was_stopped_by = earlier.stopped_by

    @property
    def own(self) -> list[TrialRecord]:
        """Trials of this run that count: not those that failed or were stopped before the task was cleared."""
        return [
            trial
            for trial in self.trials[self.study.first_trial :]
            if trial.state not in ("failed", "stopped") or trial.number >= self._counted_from
        ]

    @property
    def done(self) -> list[Mapping[str, Any]]:
        """Parameters that a grid need not repeat: those of this code and data, unless the trial failed before."""
        counted = {trial.number for trial in self.own}
        return [t.params for t in self.current if t.number in counted or t.state in ("complete", "pruned")]

    @property
    def current(self) -> Iterator[TrialRecord]:
        """Trials of this code and data."""
        return (trial for trial in self.trials if trial.key == trial_key(self.study.base, trial.params))

    @property
    def best(self) -> TrialRecord | None:
        """Best trial of this code and data so far."""
        return None if self.study.best is None else self.trials[self.study.best]

    def interrupted(self) -> list[TrialRecord]:
        """Returns the trials that ran when the search was killed; marks those with too many tries as failed."""
        results = []
        for trial in [trial for trial in self.trials if trial.state == "running"]:
            if trial.number < self.study.first_trial or trial.tries >= _MAX_TRIES:
                reason = f"the search was ended {trial.tries} times while it ran"
                self.put(replace(trial, state="failed", reason=reason, ended=now()))
            else:
                results.append(trial)
        return results

    def put(self, trial: TrialRecord) -> bool:
        """Adds or updates a trial; returns whether it is the best one now."""
        line = json.dumps(trial.to_dict())
        if trial.number == len(self.trials):
            self.trials.append(trial)
            self._lines.append(line)
        else:
            self._counts[self.trials[trial.number].state] -= 1
            self.trials[trial.number], self._lines[trial.number] = trial, line
        self._changed.add(trial.number)
        self._counts[trial.state] += 1
        return self._rank(trial)

    def update(self, **fields: Any) -> None:
        """Changes fields of the study."""
        self.study = replace(self.study, **fields)

    def save(self, *, final: bool = False) -> None:
        """Writes the changes. If the store is unavailable for some seconds, the next call tries again.

        Args:
            final: Whether this is the last call.

        Raises:
            HopsError: the store is unavailable for longer, or this is the last call.
            LeaseLost: another search has taken the study.
        """
        changed, self._changed = self._changed, set()
        best = self.best
        self.update(
            counts=dict(+self._counts),
            done=sum(trial.state != "running" for trial in self.own),
            best_values=() if best is None else best.values,
            best_params={} if best is None else best.params,
        )
        try:
            if self._lease is not None:
                self._lease.check()
            self._folder.write_trials(self._lines, changed)
            self._folder.write(self.study)
            self._failing_since = None
        except LeaseLost:
            raise
        except (OSError, HopsError) as error:
            self._changed |= changed
            self._failing_since = self._failing_since or time.monotonic()
            if final or time.monotonic() - self._failing_since > _ANSWER_S:
                raise HopsError(f"{self._folder.uri}: the record of the search cannot be written: {error}") from error
            log.warning("%s: the record cannot be written; trying again: %s", self._folder.uri, error)

    def _count(self) -> None:
        self.study = replace(self.study, best=None, pareto=())
        for trial in self.current:
            self._rank(trial)

    def _rank(self, trial: TrialRecord) -> bool:
        if trial.state != "complete" or trial.key != trial_key(self.study.base, trial.params):
            return False
        signs = [-1.0 if each == "maximize" else 1.0 for each in self.study.directions]

        def costs(number: int) -> list[float]:
            return [sign * value for sign, value in zip(signs, self.trials[number].values, strict=True)]

        if len(signs) > 1 and trial.number not in self.study.pareto:
            own, front = costs(trial.number), list(self.study.pareto)
            if not any(_dominates(costs(other), own) for other in front):
                front = [other for other in front if not _dominates(own, costs(other))]
                self.study = replace(self.study, pareto=[*front, trial.number])
        chosen = list(self.study.metrics).index(self.study.choose or self.study.metrics[0])
        best = self.study.best
        if best is not None and costs(best)[chosen] <= costs(trial.number)[chosen]:
            return False
        self.study = replace(self.study, best=trial.number)
        return True


def trial_key(base: str, params: Mapping[str, object]) -> str:
    """Returns the key of a trial, which changes with code, data, options and parameters."""
    return hashlib.sha256(f"{base}{json.dumps(dict(params), sort_keys=True)}".encode()).hexdigest()[:16]


def new_study(options: SearchOptions, program: str, base: str, producer: Producer) -> StudyRecord:
    """Returns the record of a new search."""
    return StudyRecord(
        name=options.study or producer.run_id,
        dag_id=producer.dag_id,
        task_id=producer.task,
        run_id=producer.run_id,
        state="running",
        program=program,
        space=options.space,
        metrics=options.metrics,
        directions=options.directions,
        sampler=options.sampler,
        pruner=options.pruner,
        trials=options.wanted,
        parallel=options.parallel,
        seed=options.seed,
        started=now(),
        base=base,
        choose=options.choose,
    )


def thinned(series: Sequence[tuple[int, float]]) -> list[list[float]]:
    """Thins a series to at most :data:`MAX_INTERMEDIATE` values, including the first and the last."""
    stride = -(-len(series) // (MAX_INTERMEDIATE - 1)) or 1
    points = [*series[::stride]]
    if series and points[-1] != series[-1]:
        points.append(series[-1])
    return [[step, value] for step, value in points]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)


def _differing(one: StudyRecord, other: StudyRecord) -> list[str]:
    fields, others = one.to_dict(), other.to_dict()
    return [name for name in _FIXED if fields[name] != others[name]]
