"""Repeats the steps that made a served model for other time windows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Producer, cache_key
from airflow_hops.core.artifacts.properties import AnomaliesProperties, ModelProperties
from airflow_hops.core.errors import BadInput, HopsError, StepFailed
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.models.model_record import read_record, recorded_models
from airflow_hops.core.monitor_reports import monitoring_reports
from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.schema.history import IMPORTED
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.steps.run_record import RunRecord
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.replay.core.backtest import BACKTEST, BacktestCandidate
from airflow_hops.extensions.replay.runner.chain import (
    ChainStep,
    ancestors,
    chain_of,
    recorded,
    window_of,
    with_artifacts,
)
from airflow_hops.extensions.replay.runner.recorded_steps import launcher_of, recorded_params, unpack_code
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.environments.named import runtime_fingerprint
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.user_code.fingerprints import package_fingerprint

_MADE = "made.json"
_POLL_S = 0.5
Time = str | datetime


@dataclass(frozen=True)
class _Made(JsonFields):
    """Record of a window, ``made.json``; it is written last, so its presence marks completion.

    Attributes:
        key: Key of the pipeline.
        artifacts: Retained artifacts by the pipeline's name of the step. They are not keyed by address, since another
            champion with the same key has other addresses.
        cost: Cost of all steps, as in manifests.
        wall_s: Wall-clock seconds.
    """

    key: str
    artifacts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    def artifact(self, step: str) -> Artifact:
        return Artifact.from_dict(self.artifacts[step])


class PipelineReplay:
    """The pipeline of a served model, which can train it on other windows with its original code.

    The steps come from the records of the champion and of everything it was made from. The window is that of the
    ingests. The schema is inferred from the statistics of each candidate, as if a person had accepted all changes.
    Everything is written below ``@backtest`` in the store. Ranks run on this machine.

    Args:
        hook: The connection.
        model_name: The model.

    Attributes:
        champion: Model artifact of the champion.
        dag_id: DAG that trained it.
        first_window: Start (None: open) and end of its training data, ISO 8601 UTC.
        notes: Differences from the champion's training, in sentences.
        key: Hash of everything that determines a window's result: code, parameters, sources, package, environment.

    Raises:
        BadInput: there is no champion, or the record of a step, a source, or the window is missing.
    """

    def __init__(self, hook: RuntimeHook, model_name: str) -> None:
        self._hook, self._store, self.model_name = hook, hook.store, model_name
        served = read_record(self._store, model_name).champion
        if served is None:
            known = ", ".join(recorded_models(self._store)) or "none"
            raise BadInput(f"model {model_name!r} has no champion in {self._store.root}; deployed models: {known}")
        self.champion = served.model
        self.notes: list[str] = []
        try:
            self.dag_id = self._store.manifest(self.champion.uri).producer.dag_id
        except BadInput as error:
            raise BadInput(f"the champion of model {model_name!r}: {error}") from error
        self._evaluation = self._find_evaluation()
        tested = self._evaluation.artifacts().get("examples", ()) if self._evaluation else ()
        chain_of(self._store, [self.champion])  # the model itself must depend on a window
        self._chain = chain_of(self._store, [self.champion, *tested])
        of_examples = [step.made for step in self._chain if step.made.kind in ("examples", "transformed_examples")]
        if not of_examples:
            raise BadInput(f"{self.champion.uri}: no step before the training makes examples")
        plain = [each for each in of_examples if each.kind == "examples"]
        self._history = plain[0] if plain else None
        own = {each.uri: each for each in of_examples}
        self._examples = next((own[each.uri] for each in tested if each.uri in own), (plain or of_examples)[-1])
        self._names = {uri: f"step {number}" for number, step in enumerate(self._chain) for uri in step.uris}
        self.first_window = window_of(self._chain)
        self.key = self._make_key()

    def train(self, start: Time, end: Time) -> tuple[BacktestCandidate, bool]:
        """Trains a candidate, or returns that of an earlier back-test.

        Args:
            start: Start of its data, UTC if it has no time zone.
            end: End of its data.

        Returns:
            The candidate, and whether it existed already.

        Raises:
            BadInput: a step cannot use its data, for example because the window has no rows.
            HopsError: a step failed.
        """
        window = _window(start, end)
        trained = ModelProperties.of(self.champion)
        retained = [self.champion.uri, trained.statistics, trained.schema, self._examples.uri]
        retained += [
            each.uri for each in (self._evaluation.artifacts().get("examples", ()) if self._evaluation else ())
        ]
        made, was_there = self._make(window, self._run_id(*window), self._chain, retained)
        model = made.artifact(self._names[self.champion.uri])
        result = ModelProperties.of(model)
        candidate = BacktestCandidate(
            start=window[0].isoformat(),
            end=window[1].isoformat(),
            model=model.to_dict(),
            statistics=self._reference(result.statistics),
            schema=self._reference(result.schema),
            examples=made.artifact(self._names[self._examples.uri]).to_dict(),
            cost=made.cost,
            wall_s=made.wall_s,
        )
        return candidate, was_there

    def history(self, start: Time, end: Time) -> Artifact:
        """Returns the examples of all rows of a time span, made by the pipeline's ingest and preparation.

        Raises:
            BadInput: the pipeline makes no ``examples``; or see :meth:`train`.
            HopsError: a step failed.
        """
        if self._history is None:
            raise BadInput(f"{self.champion.uri}: no step before the training makes an artifact 'examples'")
        window, uri = _window(start, end), self._history.uri
        made, _ = self._make(window, f"{self._run_id(*window)}_history", ancestors(self._chain, uri), [uri])
        return made.artifact(self._names[uri])

    def gate(self, candidate: BacktestCandidate, champion: BacktestCandidate) -> tuple[bool, tuple[str, ...]]:
        """Runs the pipeline's evaluation of a candidate against a given champion.

        Returns:
            Whether the candidate is blessed, and the reasons. Without a recorded evaluation, every candidate is.

        Raises:
            HopsError: the evaluation failed.
        """
        if self._evaluation is None:
            return True, ("the pipeline has no recorded evaluation, so every candidate serves",)
        start, end = _window(candidate.start, candidate.end)
        run_id, serving = self._run_id(start, end), Artifact.from_dict(champion.model)
        made = self._read(self._store.uri(BACKTEST, run_id))
        if made is None:
            raise BadInput(f"the candidate of {start} to {end} is no longer in the store; train it again")
        new = {uri: made.artifact(step) for uri, step in self._names.items() if step in made.artifacts}
        task = f"{self._evaluation.step}-{serving.fingerprint[:12]}"
        step = ChainStep(Artifact("", "evaluation", ""), self._evaluation, Producer(task_id=task))
        # The evaluated model may come from another run than the champion.
        inputs = {**step.inputs(new), "model": (Artifact.from_dict(candidate.model),), "champion": (serving,)}
        with temporary_folder("step", "code") as code:
            result = self._run(step, run_id, inputs, code).properties
        return bool(result["blessed"]), tuple(result["reasons"])

    def monitor(self) -> tuple[dict[str, object], dict[str, object]]:
        """Returns parameters of the model's newest recorded ``skew`` and ``performance`` steps, or empty ones."""
        own = ModelProperties.of(self.champion).label
        of_skew, of_performance = (
            recorded(self._store, (each.uri for each in monitoring_reports(self._store, self.model_name, kind)))
            for kind in ("skew", "performance")
        )
        skew = next((record for _, record in of_skew), None)
        # Measurements of further labels do not concern the compared metric.
        performance = next((record for _, record in of_performance if record.params.get("label") in (None, own)), None)
        return dict(skew.params) if skew else {}, dict(performance.params) if performance else {}

    def _find_evaluation(self) -> RunRecord | None:
        """Returns the record of the champion's evaluation, or of the DAG's newest evaluation of this model."""
        uris = (uri for uri in self._store.artifacts(self._store.uri(self.dag_id)) if uri.endswith("/evaluation"))
        newest = None
        for result, record in recorded(self._store, uris):
            if record.params.get("model_name") == self.model_name:
                if any(each.fingerprint == self.champion.fingerprint for each in result.inputs.get("model", ())):
                    return record
                newest = newest or record
        how = "candidates are judged as by the newest one of its DAG" if newest else "every candidate serves"
        self.notes.append(f"No evaluation of the champion is recorded: {how}.")
        return newest

    def _make_key(self) -> str:
        parts = {"code": package_fingerprint(), "runtime": runtime_fingerprint(self._hook.settings.runtime)}
        numbered: dict[str, Artifact] = {}
        for number, step in enumerate(self._chain):
            params = recorded_params(step.record, Path())  # raises early if a secret is unknown
            if step.has_window:
                sources = {table: row_source(table, source) for table, source in params["sources"].items()}
                try:
                    parts[f"sources {number}"] = state_of_sources(sources)
                except (BadInput, OSError) as error:
                    raise BadInput(f"the sources of model {self.model_name!r}: {error}; restore them") from error
                params |= {"window_start": None, "window_end": None}
            values = {role: [a.fingerprint for a in result] for role, result in step.inputs(numbered).items()}
            what = [step.record.entry, with_artifacts(params, numbered), values]
            code = [step.record.parts.get(name) for name in ("user code", "conf")]
            parts[f"step {number}"] = json.dumps([*what, *code], sort_keys=True)
            numbered |= dict.fromkeys(step.uris, Artifact(f"step {number}", step.made.kind, f"step {number}"))
        return cache_key(parts)

    def _run_id(self, start: datetime, end: datetime) -> str:
        first, last = (f"{time:%Y%m%dT%H%M%S}{time.microsecond or ''}" for time in (start, end))
        return f"{self.model_name}_{self.key[:12]}_{first}_{last}"

    def _reference(self, uri: str | None) -> dict[str, Any]:
        return {} if uri is None else self._store.manifest(uri).reference(uri).to_dict()

    def _make(
        self, window: tuple[datetime, datetime], run_id: str, steps: Iterable[ChainStep], retained: Iterable[str | None]
    ) -> tuple[_Made, bool]:
        """Runs steps for a window and retains some of their artifacts, or returns those of an earlier back-test."""
        folder = self._store.uri(BACKTEST, run_id)
        wanted = {uri: self._names[uri] for uri in retained if uri in self._names}
        with self._lock(folder):
            made = self._read(folder)
            if made is not None and made.artifacts.keys() >= set(wanted.values()):
                self._remove_others(run_id, steps, made)
                return made, True
            began, new, costs = time.monotonic(), dict[str, Artifact](), list[Mapping[str, float]]()
            with temporary_folder("step", "code") as code:
                for number, step in enumerate(steps):
                    try:
                        result = self._run(step, run_id, step.inputs(new), code / str(number), new, window)
                    except StepFailed as error:
                        kind = HopsError if error.retryable else BadInput
                        raise kind(f"{self.model_name} on {window[0]} to {window[1]}: {error}") from error
                    costs.append(self._store.manifest(result.uri).cost)
                    if step.made.kind != result.kind:
                        result = Artifact.from_dict(AnomaliesProperties.of(result).examples or {})
                    new |= dict.fromkeys(step.uris, result)
            names = dict.fromkeys(name for cost in costs for name in cost)
            total = {name: round(sum(cost.get(name, 0.0) for cost in costs), 2) for name in names}
            wall_s = round(time.monotonic() - began, 2)
            artifacts = {name: new[uri].to_dict() for uri, name in wanted.items()}
            made = _Made(self.key, artifacts, total, wall_s)
            self._store.write_text(f"{folder}/{_MADE}", json.dumps(made.to_dict(), indent=1))
            self._remove_others(run_id, steps, made)
            return made, False

    def _lock(self, folder: str) -> ExitStack:
        """Waits for other back-tests of the same window, unless this one is killed."""
        while not self._hook.killed:
            with suppress(LockHeld), ExitStack() as held:
                held.enter_context(self._store.lock(folder, _POLL_S))
                return held.pop_all()
        message = "it was killed while another back-test trained for the same window"
        raise StepFailed(message, step="backtest", retryable=True)

    def _run(
        self,
        step: ChainStep,
        run_id: str,
        inputs: Mapping[str, tuple[Artifact, ...]],
        code: Path,
        new: Mapping[str, Artifact] = {},
        window: tuple[datetime, datetime] | None = None,
    ) -> Artifact:
        """Runs a step, or reuses the artifact of a killed back-test."""
        if self._hook.killed:
            name = step.record.step
            raise StepFailed(f"step {name!r} was killed before it began", step=name, retryable=True)
        record, store = step.record, self._store
        params = with_artifacts(recorded_params(record, code), new)
        if window and step.has_window:
            params |= {"window_start": window[0].isoformat(), "window_end": window[1].isoformat()}
            params.pop("plans", None)  # another window may need a newer state of its tables
        producer = replace(step.producer, dag_id=BACKTEST, run_id=run_id, try_number=1)
        uri, kind = self._address(step, run_id), str(record.output_kind)
        spec = StepSpec(
            step=record.step,
            entry=record.entry,
            params=params,
            inputs=inputs,
            output=Output(uri, kind),
            producer=producer,
            code_paths=unpack_code(store, record, code),
            services={"tracking_uri": ""},
        )
        parts = self._hook.complete(spec).cache_key_parts
        if store.exists(uri):
            manifest = store.manifest(uri)
            there = {name: part for name, part in manifest.cache_key_parts.items() if name != IMPORTED}
            if there == parts and store.damage(uri, manifest) is None:
                return manifest.reference(uri)
        if kind == "schema":  # an existing schema would not be inferred again
            store.remove_folder(uri.rpartition("/")[0])
        launcher = launcher_of(self._hook, record)
        result = self._hook.run(spec, launcher=launcher, cache=False, on_line=lambda line: None)
        return Artifact.from_dict(result.value)

    def _address(self, step: ChainStep, run_id: str) -> str:
        producer = replace(step.producer, dag_id=BACKTEST, run_id=run_id)
        return self._store.address(producer, str(step.record.output_kind))

    def _read(self, folder: str) -> _Made | None:
        """Reads the record of a window; None if it does not exist, or an artifact is missing or damaged."""
        try:
            made = _Made.from_dict(self._store.read_json(f"{folder}/{_MADE}"))
            for step in made.artifacts:
                artifact = made.artifact(step)
                manifest = self._store.manifest(artifact.uri)
                if manifest.fingerprint != artifact.fingerprint or self._store.damage(artifact.uri, manifest):
                    return None
        except (FileNotFoundError, BadInput, TypeError, ValueError, KeyError, AttributeError):
            return None
        return made if made.key == self.key else None

    def _remove_others(self, run_id: str, steps: Iterable[ChainStep], made: _Made) -> None:
        """Removes artifacts that are not retained, including those of a killed back-test."""
        retained = {made.artifact(step).uri for step in made.artifacts}
        for step in steps:
            address = self._address(step, run_id)
            for uri in {address, f"{address.rpartition('/')[0]}/{step.made.kind}"} - retained:
                self._store.remove_folder(uri)


def _window(start: Time, end: Time) -> tuple[datetime, datetime]:
    first, last = as_utc(str(start)), as_utc(str(end))
    if first >= last:
        raise BadInput(f"the window begins at {first} and ends at {last}; expected an end after the start")
    return first, last
