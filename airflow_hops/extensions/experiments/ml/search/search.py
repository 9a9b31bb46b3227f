"""Runs a search: fills the slots with trials, prunes them, and saves their record and the best model."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_files import read_json
from airflow_hops.core.times import now
from airflow_hops.extensions.experiments.core.search import SearchOptions, TrialRecord
from airflow_hops.extensions.experiments.core.search.study import StudyState, TrialState
from airflow_hops.extensions.experiments.core.studies import StudyFolder
from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy
from airflow_hops.extensions.experiments.ml.search.processes import Trials
from airflow_hops.extensions.experiments.ml.search.running import RunningTrial, described
from airflow_hops.extensions.experiments.ml.search.tracking import StudyRuns
from airflow_hops.extensions.experiments.ml.search.trial import Assignment, TrialEvent, last_lines
from airflow_hops.ml.training.gang.supervisor import LOG_FOLLOWS

# One thread does everything in a loop: start trials in free slots, end those past their grace, read requests to stop,
# save the record, handle events. Only training runs are written by other threads (StudyRuns).
# A trial that is pruned or stopped gets SIGTERM, and 5 s to return by itself; then it is killed. Its state is decided
# when the request is made (RunningTrial.ending), unless its result has already arrived.
# Requests to stop are files in the study's folder. Those for the search or for a waiting trial stay until the search
# has ended, so that they survive a kill; those for a running trial are removed once the trial has its signal.

_WAIT_S = 0.5
_SAVE_S = 1.0
_STOP_S = 2.0
_GRACE_S = 5.0
_REASON_CHARACTERS = 2000

log = logging.getLogger(__name__)


class Search:
    """Runs trials until the planned number is complete.

    Args:
        options: Options of the search.
        np: Ranks of a trial.
        study: The study.
        folder: Folder of the study.
        trials: Starts trials.
        runs: Training runs of the search and its trials.
        scratch: Folder for the output of trials.

    Attributes:
        earlier: Complete trials of the same code and data by key, which are not run again.
        keep: Called with the best trial so far, the folder of its training and its summary.
        ended: Called with each ended trial and the folder of its training, which is then removed. The trial counts as
            ended only once the call has returned.
        measured: Computes the metrics of a trial, instead of :meth:`RunningTrial.measured`.
        say: Called with the finished share, and the search's state as text.
    """

    def __init__(
        self,
        options: SearchOptions,
        np: int,
        study: OptunaStudy,
        folder: StudyFolder,
        trials: Trials,
        runs: StudyRuns,
        scratch: Path,
    ) -> None:
        self._options, self._np, self._study = options, np, study
        self._folder, self._trials, self._runs, self._scratch = folder, trials, runs, scratch
        self.earlier: dict[str, tuple[str, TrialRecord]] = {}
        self.keep: Callable[[TrialRecord, Path, Mapping[str, Any]], None] = lambda *_: None
        self.ended: Callable[[TrialRecord, Path], None] = lambda *_: None
        self.measured: Callable[[RunningTrial], dict[str, float]] | None = None
        self.say: Callable[[float, str], None] = lambda *_: None
        self._running: dict[int, RunningTrial] = {}
        self._waiting: list[TrialRecord] = []
        self._looked, self._saved, self._save_took_s, self._has_news = 0.0, 0.0, 0.0, False
        self._began = time.monotonic() - study.begun_s
        self._stopped_by = study.was_stopped_by
        self._failure: tuple[str, bool] | None = None
        self._exhausted, self._is_late = False, False

    def run(self) -> TrialRecord:
        """Runs the trials; returns the best one.

        Raises:
            BadInput: no trial reports the metric; or too many or all failed in a way that a retry would repeat.
            HopsError: too many trials failed, or all.
        """
        state: StudyState = "failed"
        error = None
        try:
            if not self._study.was_killed:
                self._answered()
            self._waiting = self._study.interrupted()
            self._answer_stops()
            self._work()
            state = "complete" if self._stopped_by is None else "stopped"
            if self._study.best is None:
                state = "failed" if state == "complete" else state
                raise self._no_winner()
            return self._study.best
        except BaseException as raised:
            error = str(raised) if isinstance(raised, HopsError) else f"{type(raised).__name__}: {raised}"
            state = state if state == "stopped" else "failed"
            raise
        finally:
            self._close(state, error)

    @property
    def cut_short(self) -> str | None:
        """Reason why there are fewer trials than planned, or None."""
        if self._stopped_by is not None:
            return f"{self._stopped_by} stopped the search"
        if self._is_late:
            return f"the timeout of {self._options.timeout_s:g} s left {len(self._study.own)} trials"
        return None

    def _close(self, state: StudyState, error: str | None) -> None:
        """Ends running trials, and records the search's end."""
        for number in self._running:
            self._trials.end(number)
        why = f"{self._stopped_by} stopped the search" if self._stopped_by else f"the search ended: {error}"
        for trial in [trial for trial in self._study.trials if trial.state == "running"]:
            run_id = self._runs.id_of(trial.number)
            stopped = replace(trial, state="stopped", reason=why[:_REASON_CHARACTERS], ended=now(), training=run_id)
            self._study.put(stopped)
            curves = self._running[trial.number].curves if trial.number in self._running else []
            with suppress(Exception):  # errors of the thread, which have ended the search
                self._runs.log(stopped, curves)
        self._runs.finish()
        self._study.update(state=state, error=error, ended=now(), stopped_by=self._stopped_by)
        self._study.save(final=True)
        self._answered()

    def _work(self) -> None:
        while True:
            while self._start_next():
                pass
            now = time.monotonic()
            for number, running in self._running.items():
                if running.kill_at is not None and now > running.kill_at:
                    running.kill_at = None
                    self._trials.end(number)
            if now - self._looked > _STOP_S:
                self._looked = now
                self._answer_stops()
            if now - self._saved > (2 * self._save_took_s if self._has_news else _SAVE_S):
                self._study.save()
                self._has_news, self._saved = False, time.monotonic()
                self._save_took_s = self._saved - now
            if not self._running:
                return
            for event in self._trials.events(_WAIT_S):
                self._hear(event)

    def _start_next(self) -> bool:
        """Starts a trial or reuses one of an earlier study; returns False if no more are planned."""
        if self._stopped_by is not None or len(self._running) >= self._options.parallel:
            return False
        if self._waiting:
            again = self._waiting.pop(0)
            self._start(replace(again, tries=again.tries + 1, started=now()))
            return True
        if self._exhausted or len(self._study.own) >= self._options.wanted:
            return False
        if self._options.timeout_s is not None and time.monotonic() - self._began > self._options.timeout_s:
            self._is_late = True
            return False
        trial = self._study.ask()
        if trial is None:
            self._exhausted = True
            return False
        if not self._take_over(trial):
            self._start(trial)
        return True

    def _start(self, trial: TrialRecord) -> None:
        taken = {running.slot for running in self._running.values()}
        slot = next(number for number in range(self._options.parallel) if number not in taken)
        output = self._scratch / f"trial-{trial.number}"
        shutil.rmtree(output, ignore_errors=True)
        self._study.put(trial)
        self._running[trial.number] = RunningTrial(time.monotonic(), output, slot)
        self._trials.start(Assignment(trial.number, slot, dict(trial.params), self._np, str(output)))

    def _take_over(self, trial: TrialRecord) -> bool:
        """Reuses the values of an earlier trial with the same key, if it has all metrics of this search."""
        name, earlier = self.earlier.get(trial.key, ("", None))
        values = [earlier.metrics.get(each, math.nan) for each in self._options.metrics] if earlier else []
        if earlier is None or not all(map(math.isfinite, values)):
            return False
        taken = replace(
            trial,
            state="complete",
            values=values,
            metrics=earlier.metrics,
            has_model=earlier.has_model,
            ended=trial.started,
            seconds=0.0,
            taken_from=f"{name}#{earlier.number}",
            training=self._runs.id_of(trial.number),
        )
        self._study.put(taken)
        self._runs.log(taken, [])
        return True

    def _hear(self, event: TrialEvent) -> None:
        number, kind = event["number"], event["type"]
        running = self._running.get(number)
        if running is None:
            return
        if kind == "report":
            step = event["step"]
            metrics = event["metrics"]
            value = running.take(step, metrics, self._options.metrics[0])
            if value is not None and self._study.report(number, step, value):
                self._end(number, "pruned", f"{self._options.pruner} pruned it at step {step}")
        elif kind == "result":
            running.result = read_json(running.output / "training.json")
        elif kind == "error":
            running.error = event
        elif kind == "ended":
            self._finish(number, event["code"])

    def _end(self, number: int, state: TrialState, reason: str) -> None:
        running = self._running[number]
        if running.ending is None and running.result is None:
            running.ending, running.kill_at = (state, reason), time.monotonic() + _GRACE_S
            self._trials.stop(number)

    def _finish(self, number: int, code: int) -> None:
        """Records the outcome of a trial whose process has ended."""
        running = self._running[number]
        state, reason, metrics = running.outcome(self._options.metrics, code, self.measured)
        values = [metrics[name] for name in self._options.metrics] if state == "complete" else None
        trial = replace(
            self._study.trials[number],
            state=state,
            values=values or (),
            metrics=metrics,
            reason=reason.partition(LOG_FOLLOWS)[0].strip()[:_REASON_CHARACTERS],
            ended=now(),
            seconds=round(time.monotonic() - running.began, 3),
            has_model=running.result is not None and running.result["model"] is not None,
            training=self._runs.id_of(number),
        )
        self.ended(trial, running.output)
        del self._running[number]
        self._has_news = True
        if state == "failed":
            try:
                self._folder.write_log(number, last_lines(running.output))
            except (OSError, HopsError) as error:
                log.warning("the log of trial %d cannot be stored: %s", number, error)
        if self._study.put(trial):
            assert running.result is not None
            self.keep(trial, running.output, running.result)
        if trial.state == "complete" and self._options.reuse:
            self.earlier.setdefault(trial.key, (self._study.record.name, trial))
        self._runs.log(trial, running.curves)
        shutil.rmtree(running.output, ignore_errors=True)
        self._say(trial)
        if state == "failed":
            retryable = running.error is None or bool(running.error.get("retryable", True))
            self._failure = (f"trial {trial.number}: {reason}", retryable)
            own = self._study.own
            is_first = not any(each.state in ("complete", "pruned") for each in own)
            if running.lacks_metric and is_first:
                raise BadInput(self._failure[0])
            failed = [each for each in own if each.state == "failed"]
            if len(failed) > self._options.allowed_failures:
                raise (HopsError if retryable else BadInput)(
                    f"{len(failed)} trials failed, more than max_failures={self._options.allowed_failures} allows; the "
                    f"last of them, {self._failure[0]}"
                )

    def _no_winner(self) -> HopsError:
        if self._stopped_by is not None:
            return BadInput(f"{self._stopped_by} stopped the search before a trial was complete")
        late = f"timeout, which counts from the first try on, is {self._options.timeout_s} s: set a longer one"
        message, retryable = self._failure or (late if self._is_late else "all of them were pruned or stopped", False)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self._counts().items())) or "none was begun"
        return (HopsError if retryable else BadInput)(f"no trial is complete ({counts}); {message}")

    def _answer_stops(self) -> None:
        try:
            requests = self._folder.stop_requests(self._study.record.run_id)
            for number, by in requests.items():
                if number is None:
                    self._stopped_by = by
                for each in list(self._running) if number is None else [number] if number in self._running else []:
                    self._end(each, "stopped", f"{by} stopped it")
                # Requests to stop the search, or a waiting trial, must survive a kill.
                if number is not None and number not in [trial.number for trial in self._waiting]:
                    self._folder.clear_stop(number)
        except (OSError, HopsError) as error:
            log.warning("requests to stop cannot be read: %s", error)

    def _answered(self) -> None:
        try:
            self._folder.clear_stops()
        except (OSError, HopsError) as error:
            log.warning("requests to stop cannot be removed: %s", error)

    def _counts(self) -> Counter[str]:
        return Counter(trial.state for trial in self._study.own)

    def _say(self, trial: TrialRecord) -> None:
        counts, best, metric = self._counts(), self._study.best, self._options.metrics[self._options.chosen]
        level = logging.WARNING if trial.state == "failed" else logging.INFO
        log.log(level, "%s", described(trial, self._options.metrics))
        done = sum(counts.values()) - counts.pop("running", 0)
        best_text = "" if best is None else f", best {metric} {best.values[self._options.chosen]:.5g} (#{best.number})"
        others = "".join(f", {counts[state]} {state}" for state in ("pruned", "failed", "stopped") if counts.get(state))
        text = f"{done} of {self._options.wanted} trials{best_text}, {len(self._running)} running{others}"
        self.say(done / self._options.wanted * self._options.trials_share, text)
