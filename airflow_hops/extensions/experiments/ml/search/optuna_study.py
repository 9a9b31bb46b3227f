"""A search's study: Optuna's, whose journal in the store is the record of the search.

Optuna has the trials with their parameters, values and reports; attributes have what it does not know: of the study
the fields of :class:`StudyRecord`, of a trial those of :class:`TrialRecord`. Both are read from it when a search
resumes, and written from it as a summary for readers without Optuna.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.trial import Trial, TrialState, create_trial

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.steps.protocol import check_json
from airflow_hops.core.store.leases import Lease, LeaseLost
from airflow_hops.core.times import now, seconds_since
from airflow_hops.extensions.experiments.core.search import SearchOptions, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import JOURNAL_NAME, StudyFolder
from airflow_hops.extensions.experiments.ml.search.attributes import (
    STATES,
    differing_fields,
    frozen_trial,
    study_record,
    trial_key,
    trial_record,
)
from airflow_hops.extensions.experiments.ml.search.differential_evolution import DifferentialEvolutionSampler
from airflow_hops.extensions.experiments.ml.search.distributions import decoded, distributions_of, encoded
from airflow_hops.extensions.experiments.ml.search.journal import StoreJournal
from airflow_hops.ml.step.context import resolve

# Changes are written at most about once a second, by the search that holds the study's lease; check() before each write
# ends a search whose study was claimed by another one. The journal is written first, so the summary never has more.
# States of a trial: running → complete, pruned, failed or stopped, which Optuna calls FAIL. A trial is recorded as
# running before it starts, and as ended after its output has been stored (Search.ended). After a kill, trials in the
# state running are run again under their numbers, up to three tries. A kill therefore repeats the trials that ran at
# the last save, and loses none. The sampler's seed depends on the number of trials, so that a resumed search does not
# propose the same parameters again.

_MAX_TRIES = 3
_ANSWER_S = 30.0

log = logging.getLogger(__name__)


class OptunaStudy:
    """Study of a search; :meth:`save` writes its changes.

    Args:
        folder: Its folder in the store.
        record: Record of a new study.
        options: Options of the search.
        shared: Whether runs of the task share the study; an unshared one restarts if space, code or data differ.
        reuse: Whether trials of an earlier try count after it published its winner; otherwise the study restarts.
        lease: The study's lease, which this search holds.
        make_sampler: Creates a sampler from a seed, instead of the one in the options.
        points: Parameters of a grid's trials, instead of all combinations of the space's values.

    Attributes:
        record: The study.
        trials: All trials, by number.
        was_killed: Whether an earlier try of this run was killed.
        begun_s: Seconds since the first try of this run began; 0 after its winner was published.
        was_stopped_by: The person who stopped an earlier try of this run whose winner is not yet published.

    Raises:
        BadInput: the study exists with another space or other metrics, or its journal is damaged.
    """

    def __init__(
        self,
        folder: StudyFolder,
        record: StudyRecord,
        options: SearchOptions,
        *,
        shared: bool = False,
        reuse: bool = True,
        lease: Lease | None = None,
        make_sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None,
        points: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._folder, self._lease, self._options = folder, lease, options
        self._dimensions = options.dimensions()
        self._function = resolve(options.space) if isinstance(options.space, str) else None
        self._distributions = {} if points is not None else distributions_of(self._dimensions)
        self._running: dict[int, Trial] = {}
        self._failing_since: float | None = None
        self.was_killed, self.begun_s = False, 0.0
        self.was_stopped_by: str | None = None
        self.trials: list[TrialRecord] = []
        self._stored: optuna.Study | None = None
        self.record, self._counted_from = record, 0
        earlier = self._open()
        differing = [] if earlier is None else differing_fields(earlier, record)
        if earlier is not None and not shared:
            is_other = differing or earlier.base != record.base
            if is_other or (earlier.published and not reuse):
                why = "is of another space, code or data" if is_other else "is complete, and the cache is off"
                log.info("%s: the study of an earlier try %s; starting again", folder.uri, why)
                folder.clear()
                earlier = self._open()
        if earlier is not None and differing:
            recorded, actual = (json.dumps(each.to_dict()[differing[0]]) for each in (earlier, record))
            raise BadInput(
                f"study {record.name!r} ({folder.uri}) has a different {differing[0]} from this search's: {recorded}, "
                f"found {actual}; give this search another name with study=, or the same space, metrics and directions"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study = self._loaded(earlier)
            seed = resumed_seed(options, len(self.trials))
            self._study.sampler = sampler_of(options, seed) if make_sampler is None else make_sampler(seed)
            self._study.pruner = pruner_of(options)
        self._changed = set(range(len(self.trials)))  # a kill may have left an older summary
        for trial in self.trials:
            self._rank(trial)
        if earlier is not None:
            self._resume(earlier)
        self.update()
        made = {json.dumps(dict(params), sort_keys=True) for params in self.done}
        grid = iter(points) if points is not None else options.points() if options.sampler == "grid" else None
        self._grid = None if grid is None else (p for p in grid if json.dumps(p, sort_keys=True) not in made)

    def _open(self) -> StudyRecord | None:
        """Opens the journal; returns the study, or None if there is none."""
        uri = self._folder.uri
        self._journal = StoreJournal(self._folder.store, uri)
        self._stored, self.trials = None, []
        try:
            self._storage = JournalStorage(self._journal)
            for name in optuna.get_all_study_names(self._storage):
                self._stored = optuna.load_study(study_name=name, storage=self._storage)
                self.trials = [trial_record(trial) for trial in self._stored.get_trials(deepcopy=False)]
                return study_record(self._stored)
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            text = f"{type(error).__name__}: {error}"
            raise BadInput(
                f"{uri}/{JOURNAL_NAME}: not the journal of a search ({text}); restore it, or remove the study"
            ) from error
        return self._folder.read()

    def _loaded(self, earlier: StudyRecord | None) -> optuna.Study:
        """Returns Optuna's study, with the trials of a version that had only the summary."""
        study, record = self._stored, self.record
        if study is None:
            study = optuna.create_study(
                study_name=record.name, storage=self._storage, directions=list(record.directions)
            )
            study.set_metric_names(list(record.metrics))
        left = [] if earlier is None else self._folder.trials()[len(self.trials) :]
        study.add_trials([frozen_trial(trial, self._dimensions, self._distributions) for trial in left])
        self.trials += [replace(trial, more={}) for trial in left]
        return study

    def _resume(self, earlier: StudyRecord) -> None:
        """Continues a study of this run, or one that runs share."""
        continues = earlier.run_id == self.record.run_id
        first = earlier.first_trial if continues else len(self.trials)
        # Clearing the task repeats failed and stopped trials; a retry after a kill counts them as run.
        self.was_killed = continues and earlier.state == "running"
        self._counted_from = first if self.was_killed else len(self.trials)
        started = earlier.started if continues else self.record.started
        self.record = replace(self.record, first_trial=first, started=started)
        if continues and not earlier.published:
            # A person may clear the task of an ended search long after it.
            until = 0.0 if self.was_killed or earlier.ended is None else seconds_since(earlier.ended)
            self.begun_s = seconds_since(earlier.started) - until
            if earlier.state == "stopped" and self.best is not None:
                self.was_stopped_by = earlier.stopped_by

    @property
    def own(self) -> list[TrialRecord]:
        """Trials of this run that count: not those that failed or were stopped before the task was cleared."""
        return [
            trial
            for trial in self.trials[self.record.first_trial :]
            if trial.key and (trial.state not in ("failed", "stopped") or trial.number >= self._counted_from)
        ]

    @property
    def done(self) -> list[Mapping[str, Any]]:
        """Parameters that a grid need not repeat: those of this code and data, unless the trial failed before."""
        counted = {trial.number for trial in self.own}
        return [t.params for t in self.current if t.number in counted or t.state in ("complete", "pruned")]

    @property
    def current(self) -> Iterator[TrialRecord]:
        """Trials of this code and data."""
        return (trial for trial in self.trials if trial.key == trial_key(self.record.base, trial.params))

    @property
    def best(self) -> TrialRecord | None:
        """Best trial of this code and data so far."""
        return None if self.record.best is None else self.trials[self.record.best]

    def interrupted(self) -> list[TrialRecord]:
        """Returns the trials that ran when the search was killed; marks those with too many tries as failed."""
        results = []
        for trial in [trial for trial in self.trials if trial.state == "running"]:
            if not trial.key:
                self.put(replace(trial, state="failed", reason="the search was killed before it began", ended=now()))
            elif trial.number < self.record.first_trial or trial.tries >= _MAX_TRIES:
                reason = f"the search was ended {trial.tries} times while it ran"
                self.put(replace(trial, state="failed", reason=reason, ended=now()))
            else:
                results.append(trial)
        return results

    def ask(self) -> TrialRecord | None:
        """Returns the next trial, which :meth:`put` then records; None at the end of a grid.

        Raises:
            BadInput: the function of the space returned no parameters, or suggests choices that Python finds equal.
        """
        if self._grid is not None:
            point = next(self._grid, None)
            if point is None:
                return None
            params = dict(point)
            values = {name: encoded(self._dimensions, name, point[name]) for name in self._distributions}
            running = create_trial(state=TrialState.RUNNING, params=values, distributions=self._distributions)
            self._study.add_trial(running)
            number = len(self._study.get_trials(deepcopy=False)) - 1
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # samplers warn if they fall back to random values
                trial = self._study.ask(self._distributions)
                number, self._running[trial.number] = trial.number, trial
                try:
                    params = (
                        self._called(trial) if self._dimensions is None else decoded(self._dimensions, trial.params)
                    )
                except Exception:
                    self._study.tell(trial, state=TrialState.FAIL)
                    raise
        return TrialRecord(
            number=number,
            state="running",
            params=params,
            started=now(),
            key=trial_key(self.record.base, params),
            run_id=self.record.run_id,
        )

    def report(self, number: int, step: int, value: float) -> bool:
        """Adds an intermediate value of a running trial; returns whether to prune it."""
        if len(self._options.metrics) > 1:
            return False
        trial = self._trial(number)
        trial.report(value, step)
        return bool(trial.should_prune())

    def put(self, trial: TrialRecord) -> bool:
        """Adds or updates a running trial, or ends it; returns whether it is the best one now."""
        own = self._trial(trial.number)
        _write(own, own.user_attrs, trial)
        if trial.state != "running":
            self._study.tell(own, list(trial.values) or None, state=STATES[trial.state])
            self._running.pop(trial.number)
        self.trials[trial.number : trial.number + 1] = [trial]
        self._changed.add(trial.number)
        return self._rank(trial)

    def update(self, **values: Any) -> None:
        """Changes fields of the study."""
        self.record = replace(self.record, **values)
        _write(self._study, self._study.user_attrs, self.record)

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
            counts=dict(Counter(trial.state for trial in self.trials)),
            done=sum(trial.state not in ("waiting", "running") for trial in self.own),
            best_values=() if best is None else best.values,
            best_params={} if best is None else best.params,
        )
        try:
            if self._lease is not None:
                self._lease.check()
            self._journal.flush()
            self._folder.write_trials(self.trials, changed)
            self._folder.write(self.record)
            self._failing_since = None
        except LeaseLost:
            raise
        except (OSError, HopsError) as error:
            self._changed |= changed
            self._failing_since = self._failing_since or time.monotonic()
            if final or time.monotonic() - self._failing_since > _ANSWER_S:
                raise HopsError(f"{self._folder.uri}: the record of the search cannot be written: {error}") from error
            log.warning("%s: the record cannot be written; trying again: %s", self._folder.uri, error)

    def _trial(self, number: int) -> Trial:
        """Returns Optuna's running trial, of an earlier try, too."""
        if number not in self._running:
            trial = self._study.get_trials(deepcopy=False)[number]
            self._running[number] = Trial(self._study, trial._trial_id)
        return self._running[number]

    def _called(self, trial: Trial) -> dict[str, Any]:
        """Returns the parameters of the function that defines the space."""
        assert self._function is not None
        returned = self._function(trial)
        params = dict(trial.params) if returned is None else returned
        if not isinstance(params, Mapping) or not params:
            raise BadInput(f"space function {self._options.space!r} returned {returned!r}; expected parameters by name")
        check_json(dict(params), f"what space function {self._options.space!r} returned")
        for name, each in trial.distributions.items():
            if isinstance(each, CategoricalDistribution) and len(set(each.choices)) < len(each.choices):
                raise BadInput(
                    f"space function {self._options.space!r} suggests {name!r} of {list(each.choices)}, some of which "
                    "are equal in Python, so Optuna would treat them as one; give strings, and convert the value"
                )
        return dict(params)

    def _rank(self, trial: TrialRecord) -> bool:
        if trial.state != "complete" or trial.key != trial_key(self.record.base, trial.params):
            return False
        chosen = list(self.record.metrics).index(self.record.choose or self.record.metrics[0])
        sign = -1.0 if self.record.directions[chosen] == "maximize" else 1.0
        if self.best is not None and sign * self.best.values[chosen] <= sign * trial.values[chosen]:
            return False
        self.record = replace(self.record, best=trial.number)
        return True


def _write(to: optuna.Study | Trial, known: Mapping[str, Any], record: StudyRecord | TrialRecord) -> None:
    """Writes the fields that have changed as attributes."""
    for name, value in record.to_dict().items():
        if name not in known or known[name] != value:
            to.set_user_attr(name, value)


def resumed_seed(options: SearchOptions, trials: int) -> int:
    """Returns the sampler's seed; a study that resumes after some trials must not repeat its random numbers."""
    return int(numpy.random.SeedSequence([options.seed, trials]).generate_state(1)[0]) if trials else options.seed


def sampler_of(options: SearchOptions, seed: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of a search; a grid's points are not sampled."""
    match options.sampler:
        case "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case "differential_evolution":
            return DifferentialEvolutionSampler(seed)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed, constant_liar=options.parallel > 1)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_of(options: SearchOptions) -> optuna.pruners.BasePruner:
    """Returns the pruner of a search."""
    match options.pruner:
        case "median":
            return optuna.pruners.MedianPruner()
        case "asha":
            return optuna.pruners.SuccessiveHalvingPruner()
        case "hyperband":
            return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()
