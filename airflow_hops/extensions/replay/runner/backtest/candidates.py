"""Candidates of a back-test; each is trained and assessed once, for all policies that request it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import ModelProperties, StatisticsProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.replay.core.backtest import ASSESSMENT_FILE, BACKTEST, Assessment, BacktestCandidate
from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, in_days
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate
from airflow_hops.extensions.replay.runner.pipeline import PipelineReplay
from airflow_hops.runner.runtime import RuntimeHook

_ASSESS = "airflow_hops.extensions.replay.ml.backtest.stage:run"


def champion_properties(hook: RuntimeHook, model_name: str) -> ModelProperties:
    """Returns the properties of a model's champion; raises BadInput if it has none."""
    champion = read_record(hook.store, model_name).champion
    if champion is None:
        raise BadInput(f"model {model_name!r} has no champion in {hook.store.root}; deploy one first")
    return ModelProperties.of(champion.model)


class Candidates:
    """Trains and assesses candidates with the champion's pipeline, each once.

    Args:
        hook: The connection.
        plan: The plan of the back-test.
        say: Called with progress messages.
    """

    def __init__(self, hook: RuntimeHook, plan: BacktestPlan, say: Callable[[str], None]) -> None:
        self._hook, self._plan, self._say = hook, plan, say
        self._candidates: dict[tuple[datetime, datetime], AssessedCandidate] = {}
        self._gates: dict[tuple[str, str], tuple[bool, tuple[str, ...]]] = {}

    @property
    def dag_id(self) -> str:
        """DAG whose steps are repeated."""
        return self._pipeline.dag_id

    @property
    def notes(self) -> list[str]:
        """Facts that are not recorded, and the assumptions that replace them, in sentences."""
        (skew, performance), notes = self._monitor, list(self._pipeline.notes)
        if not skew:
            notes.append("No comparison by a SkewOperator is recorded: its defaults are used, without a time_feature.")
        if not performance and any(delay is not None for *_, delay in self._plan.tried()):
            notes.append(
                "No measurement by a PerformanceOperator is recorded: its defaults are used, and if no policy names a "
                "window, all rows since the training are measured."
            )
        return notes

    @cached_property
    def ticks(self) -> list[datetime]:
        """End of the first candidate's training data, and the ends of the following periods.

        Raises:
            BadInput: the history is too short, or the length of the first window is unknown.
        """
        if self._plan.first is not None:
            return self._plan.ticks(self._plan.first)
        start, end = self._pipeline.first_window
        if not start or not end:
            raise BadInput(
                f"the champion of {self._plan.model_name!r} was trained on the data from {start or 'the beginning'} to "
                f"{end or 'the end'}, a window without a length; set its length by first=timedelta(days=90)"
            )
        return self._plan.ticks(as_utc(end) - as_utc(start))

    def first(self) -> AssessedCandidate:
        """Returns the model with which every policy begins.

        Raises:
            BadInput: a policy names a feature or metric that the champion does not have, or the history has no rows in
                its first or last period.
        """
        self._plan.check_names(self._champion)
        _ = self._history  # fails early, before anything is trained
        result = self.of(self._plan.start, self.ticks[0] - self._plan.shortest_delay)
        earliest = self._earliest(Artifact.from_dict(result.candidate.statistics))
        if earliest is not None and earliest >= self._plan.start + self._plan.every:
            raise BadInput(
                f"the history begins at {in_days(self._plan.start)}, but its first row is of {in_days(earliest)}; "
                "begin it where its data begins"
            )
        rows = [result.period(tick).rows for tick in self.ticks[1:]]
        if not rows[-1]:
            last = max((number for number, count in enumerate(rows, 1) if count), default=0)
            raise BadInput(
                f"the history has no rows from {in_days(self.ticks[last])} to {in_days(self.ticks[-1])}, but ends "
                f"at {in_days(self._plan.end)}; end it where its data ends"
            )
        return result

    def of(self, start: datetime | None, end: datetime) -> AssessedCandidate:
        """Returns the candidate of a window, which begins with the history if ``start`` is None or earlier."""
        start = max(start or self._plan.start, self._plan.start)
        if (start, end) not in self._candidates:
            self._candidates[start, end] = self._trained(start, end)
        return self._candidates[start, end]

    def gate(self, candidate: BacktestCandidate, champion: BacktestCandidate) -> tuple[bool, tuple[str, ...]]:
        """Returns whether a candidate may replace a champion, by the recorded evaluation, and the reasons."""
        key = (candidate.model["uri"], champion.model["uri"])
        if key not in self._gates:
            self._gates[key] = self._pipeline.gate(candidate, champion)
        return self._gates[key]

    def kill(self) -> None:
        """Ends the running steps with all their processes."""
        self._hook.kill()

    @cached_property
    def _pipeline(self) -> PipelineReplay:
        return PipelineReplay(self._hook, self._plan.model_name)

    def _trained(self, start: datetime, end: datetime) -> AssessedCandidate:
        began = time.monotonic()
        candidate, cached = self._pipeline.train(start, end)
        if not cached:
            self._say(f"Trained on {in_days(start)} to {in_days(end)} in {time.monotonic() - began:.0f} s")
        return AssessedCandidate(candidate, self._assessed(candidate), cached)

    def _assessed(self, candidate: BacktestCandidate) -> Assessment:
        plan = self._plan
        skew, performance = self._monitor
        params = {
            "ticks": [tick.isoformat() for tick in self.ticks],
            "trained_until": candidate.end,
            "delays_s": [delay.total_seconds() for delay in plan.label_delays],
            "skew": {**skew, "model_name": plan.model_name, "attribute": plan.needs_effects},
            "performance": {**performance, **plan.measured_by},
        }
        inputs = {"history": (self._history,)}
        for name in ("model", "statistics", "schema", "examples"):
            if not (result := getattr(candidate, name)):
                raise BadInput(
                    f"the champion of {plan.model_name!r} was trained without {name}, which the comparison requires"
                )
            inputs[name] = (Artifact.from_dict(result),)
        # Back-tests with other ticks write their assessments elsewhere.
        named = json.dumps([params, [each.fingerprint for (each,) in inputs.values()]], sort_keys=True)
        run_id = f"{plan.model_name}_assessed_{hashlib.sha256(named.encode()).hexdigest()[:16]}"
        producer, hook = Producer(BACKTEST, run_id, "assess"), self._hook
        output = Output(hook.store.address(producer, "assessment"), "assessment")
        spec = StepSpec("assess", _ASSESS, params, inputs=inputs, output=output, producer=producer)
        launcher = hook.cluster_launcher()
        uri = hook.run(spec, launcher=launcher, on_line=lambda line: None).value["uri"]
        return Assessment.from_dict(hook.store.read_json(f"{uri}/{ASSESSMENT_FILE}"))

    @cached_property
    def _monitor(self) -> tuple[dict[str, object], dict[str, object]]:
        """Options of the live monitors, read once, so that their next runs do not change them."""
        return self._pipeline.monitor()

    @property
    def _champion(self) -> ModelProperties:
        return champion_properties(self._hook, self._plan.model_name)

    @cached_property
    def _history(self) -> Artifact:
        start, end = self._plan.start, self.ticks[-1]
        try:
            return self._pipeline.history(start, end)
        except BadInput as error:
            raise BadInput(
                f"the rows from {in_days(start)} to {in_days(end)} cannot be prepared; check that the sources have "
                f"rows for the whole time: {error}"
            ) from error

    def _earliest(self, statistics: Artifact) -> datetime | None:
        """Returns the time of the earliest row in the statistics, or None if it is unknown."""
        properties, store, result = StatisticsProperties.of(statistics), self._hook.store, []
        for split in properties.splits if properties.time else ():
            features = store.read_json(f"{statistics.uri}/{split}/statistics.json")["features"]
            result.append(features.get(properties.time, {}).get("min"))
        known = [seconds for seconds in result if seconds is not None]
        return datetime.fromtimestamp(min(known), UTC) if known else None
