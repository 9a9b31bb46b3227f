"""Watches a canary, and promotes it or rolls it back.

While it waits it changes nothing: the canary keeps the share that its deployment decided. A decision is written to the
model's record first and applied after, so that a retry of a killed task finds the decision and applies it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from airflow_hops.artifacts import Artifact, BadInput, HopsError
from airflow_hops.runtime.canary import Counts, Finding, Limits, compare_errors, compare_latency, compare_predictions
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.model_record import ModelRecord, ServedVersion, now, read_record, write_record
from airflow_hops.runtime.model_server import ModelServer
from airflow_hops.runtime.tracking import CHALLENGER, CHAMPION, ModelRegistry

PROMOTED = "promoted"
ROLLED_BACK = "rolled_back"
LEFT = "left"
_EARLY_REQUESTS = 20
"""Requests from which on a canary that fails too often is ended without waiting for the rest."""
_CAPTURED_ROWS = 200_000
"""Captured rows a version that are compared at most, the newest."""


@dataclass(frozen=True)
class Watch:
    """How long a canary is watched.

    Attributes:
        min_requests: Requests that the canary must have been asked before it is judged.
        bake_time_s: Seconds that it must have been watched.
        timeout_s: Seconds after which the watch ends without a judgement.
        on_timeout: ``roll_back`` or ``leave``: what then becomes of the canary.
        poll_s: Seconds between looks at the server.
    """

    min_requests: int
    bake_time_s: float
    timeout_s: float
    on_timeout: str
    poll_s: float

    def check(self) -> None:
        """Raises BadInput for values that make no sense."""
        if self.on_timeout not in ("roll_back", "leave"):
            raise BadInput(f"on_timeout is {self.on_timeout!r}; expected 'roll_back' or 'leave'")
        if self.min_requests < 1:
            raise BadInput(f"min_requests is {self.min_requests!r}; expected 1 or more")
        if self.timeout_s < self.bake_time_s:
            raise BadInput(f"timeout is {self.timeout_s:g} s, bake_time {self.bake_time_s:g} s; expected a longer one")


@dataclass(frozen=True)
class Decision:
    """What became of a canary, and why.

    Attributes:
        decision: ``promoted``, ``rolled_back`` or ``left``.
        reasons: In words.
        findings: The comparisons.
        canary: The canary's counts.
        stable: The stable version's counts.
        watched_s: Seconds of the watch.
    """

    decision: str
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    canary: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)
    watched_s: float = 0.0


def run(
    context: StepContext,
    *,
    min_requests: int,
    bake_time_s: float,
    timeout_s: float,
    on_timeout: str,
    max_error_increase: float,
    significance: float,
    max_latency_ratio: float,
    latency_tolerance_ms: float,
    keep_versions: int,
    poll_s: float = 1.0,
) -> Artifact:
    """The step: decides on the canary of the input ``deployment``.

    Args:
        context: The step.
        min_requests: See :class:`Watch`, as for the three that follow.
        bake_time_s: Seconds.
        timeout_s: Seconds.
        on_timeout: ``roll_back`` or ``leave``.
        max_error_increase: See :class:`~airflow_hops.runtime.canary.Limits`, as for the three that follow.
        significance: A probability.
        max_latency_ratio: A ratio.
        latency_tolerance_ms: Milliseconds.
        keep_versions: Versions that stay loaded after a promotion, the promoted one included.
        poll_s: Seconds between looks at the server.
    """
    watch = Watch(min_requests, bake_time_s, timeout_s, on_timeout, poll_s)
    watch.check()
    if keep_versions < 1:
        raise BadInput(f"keep_versions is {keep_versions!r}; expected 1 or more")
    limits = Limits(max_error_increase, significance, max_latency_ratio, latency_tolerance_ms)
    deployment = context.input("deployment")
    try:
        model_name, version = str(deployment.properties["model_name"]), int(deployment.properties["version"])
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            f"deployment {deployment.uri}: properties are {dict(deployment.properties)!r}; expected model_name and "
            "version, as DeployModelOperator gives them"
        ) from None
    server = ModelServer.of(context.spec.services, context.store)
    rollout = Rollout(context, server, model_name, version)
    decision = rollout.recorded() or rollout.watch(watch, limits)
    record = rollout.apply(decision, keep_versions)
    return _write(context, decision, record, model_name, version, watch, limits)


@dataclass(frozen=True)
class Rollout:
    """The canary of one model.

    Attributes:
        context: The step.
        server: The model server.
        model_name: Model name.
        version: The canary's version.
    """

    context: StepContext
    server: ModelServer
    model_name: str
    version: int

    def recorded(self) -> Decision | None:
        """What an earlier try, or someone else, has decided already; None while the version is the challenger."""
        record = self._record()
        if record.challenger is not None and record.challenger.version == self.version:
            return None
        event = record.last_event(self.version)
        if event is not None and event["event"] in (PROMOTED, ROLLED_BACK):
            return _decision_of(event)
        raise BadInput(
            f"model {self.model_name!r}: version {self.version} is neither challenger nor champion and was not rolled "
            "back; the deployment is not of this store"
        )

    def watch(self, watch: Watch, limits: Limits) -> Decision:
        """Waits until there is enough to judge by, or until time is up. A server that is away for a while is no end."""
        began = self._began()
        while True:
            record = self._record()
            challenger = record.challenger
            if challenger is None or challenger.version != self.version:
                decided = self.recorded()
                assert decided is not None
                return decided
            watched_s = (datetime.now(UTC) - began).total_seconds()
            try:
                decision = self._look(record, challenger, watch, limits, watched_s)
            except BadInput:
                raise
            except HopsError as error:
                decision = None
                self.context.progress(0.0, str(error))
            if decision is not None:
                return decision
            if watched_s >= watch.timeout_s:
                return self._timed_out(record, challenger, watch, watched_s)
            time.sleep(min(watch.poll_s, max(0.05, watch.timeout_s - watched_s)))

    def apply(self, decision: Decision, keep_versions: int) -> ModelRecord:
        """Makes record, registry, traffic and loaded versions what was decided; again and again with one outcome."""
        with self.server.exclusive(self.model_name):
            record = self._record()
            if record.challenger is not None and record.challenger.version == self.version:
                record = self._decide(record, decision)
                write_record(self.context.store, self.model_name, record)
            champion = record.champion
            if decision.decision == LEFT or champion is None:
                return record
            if record.challenger is None:
                # The traffic first: a version is unloaded when it has none.
                self.server.set_traffic(self.model_name, {champion.version: 100})
                former = [v for v in record.champions() if v != champion.version]
                loaded = [v for v in former if v in self.server.configured(self.model_name)][: keep_versions - 1]
                self.server.serve(self.model_name, sorted([champion.version, *loaded]), {"stable": champion.version})
            self._register(record, decision)
            return record

    def _record(self) -> ModelRecord:
        return read_record(self.context.store, self.model_name)

    def _began(self) -> datetime:
        """When the watch began: in the record, so that a retry does not begin anew."""
        with self.server.exclusive(self.model_name):
            record = self._record()
            challenger = record.challenger
            if challenger is None or challenger.version != self.version:
                return datetime.now(UTC)
            if challenger.rollout_since is None:
                challenger = replace(challenger, rollout_since=now())
                write_record(self.context.store, self.model_name, replace(record, challenger=challenger))
            return datetime.fromisoformat(str(challenger.rollout_since))

    def _look(
        self, record: ModelRecord, challenger: ServedVersion, watch: Watch, limits: Limits, watched_s: float
    ) -> Decision | None:
        """Judges the canary when there is enough to judge by."""
        canary, stable = self._counts(record, challenger)
        error = self.server.last_error(self.model_name, self.version)
        if error:
            return Decision(ROLLED_BACK, (f"the server has lost it: {error}",), (), canary, stable, watched_s)
        errors = compare_errors(canary, stable, limits)
        if errors.bad and canary.requests >= _EARLY_REQUESTS:
            return Decision(ROLLED_BACK, (f"errors: {errors.text}",), (errors,), canary, stable, watched_s)
        share = min(canary.requests / watch.min_requests, watched_s / watch.bake_time_s if watch.bake_time_s else 1.0)
        self.context.progress(
            min(share, 0.99),
            f"canary {self.version}: {canary.requests} of {watch.min_requests} requests, {canary.errors} failed; "
            f"watched for {watched_s:.0f} of {watch.bake_time_s:.0f} s",
            {"canary_requests": canary.requests, "canary_errors": canary.errors, "stable_requests": stable.requests},
        )
        if share < 1.0:
            return None
        findings = (errors, *compare_latency(canary, stable, limits), *self._predictions(record, challenger))
        bad = tuple(f"{finding.what}: {finding.text}" for finding in findings if finding.bad)
        if bad:
            return Decision(ROLLED_BACK, bad, findings, canary, stable, watched_s)
        good = tuple(f"{finding.what}: {finding.text}" for finding in findings)
        return Decision(PROMOTED, good, findings, canary, stable, watched_s)

    def _timed_out(self, record: ModelRecord, challenger: ServedVersion, watch: Watch, watched_s: float) -> Decision:
        try:
            canary, stable = self._counts(record, challenger)
            found = f"the canary was asked {canary.requests} times, {watch.min_requests} needed"
        except HopsError as error:
            canary, stable, found = Counts(), Counts(), str(error)
        decision = ROLLED_BACK if watch.on_timeout == "roll_back" else LEFT
        return Decision(decision, (f"not judged within {watch.timeout_s:g} s: {found}",), (), canary, stable, watched_s)

    def _counts(self, record: ModelRecord, challenger: ServedVersion) -> tuple[Counts, Counts]:
        counts = self.server.counts(self.model_name)

        def since(version: int) -> Counts:
            if version not in counts:
                return Counts()
            return Counts.since(counts[version], challenger.baseline.get(str(version), {}))

        assert record.champion is not None
        return since(challenger.version), since(record.champion.version)

    def _predictions(self, record: ModelRecord, challenger: ServedVersion) -> list[Finding]:
        """Compares the captured outputs of both versions since the canary began."""
        if self.server.capture_path is None:
            return [Finding("predictions", False, "not judged: the connection names no capture path")]
        self.server.flush_capture()
        since = datetime.fromisoformat(challenger.since)
        ours = self._captured(challenger.version, since)
        assert record.champion is not None
        theirs = self._captured(record.champion.version, since)
        if not ours:
            return [Finding("predictions", False, "not judged: no numeric output of the canary was captured")]
        return [compare_predictions(ours[name], theirs.get(name, np.empty(0)), name) for name in sorted(ours)]

    def _captured(self, version: int, since: datetime) -> dict[str, np.ndarray]:
        """Numeric outputs of a version that were captured since a time, flat, by name."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self.server.capture_path is not None
        folder = self.server.capture_path / self.model_name
        stamp = since.strftime("%Y%m%dT%H%M%S")
        found: dict[str, list[np.ndarray]] = {}
        rows = 0
        for path in sorted(folder.glob(f"*-v{version}-*.parquet"), reverse=True):
            if path.name[: len(stamp)] < stamp or rows >= _CAPTURED_ROWS:
                break
            file = pq.ParquetFile(path)
            names = [
                field.name
                for field in file.schema_arrow
                if field.name.startswith("output.") and _is_numeric(field.type, pa)
            ]
            table = file.read(columns=[*names, "captured_at"])
            table = table.filter(
                pa.compute.greater_equal(table["captured_at"], pa.scalar(since, pa.timestamp("us", "UTC")))
            )
            rows += table.num_rows
            for name in names:
                column = table[name]
                while pa.types.is_list(column.type):
                    column = pa.compute.list_flatten(column)
                found.setdefault(name.removeprefix("output."), []).append(column.to_numpy().astype(float))
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _decide(self, record: ModelRecord, decision: Decision) -> ModelRecord:
        challenger, champion = record.challenger, record.champion
        assert challenger is not None and champion is not None
        numbers = {
            "reasons": list(decision.reasons),
            "watched_s": round(decision.watched_s, 1),
            "canary": asdict(decision.canary),
            "stable": asdict(decision.stable),
            "findings": [asdict(finding) for finding in decision.findings],
        }
        why = "; ".join(decision.reasons)
        if decision.decision == PROMOTED:
            promoted = replace(challenger, since=now(), traffic_percent=100, baseline={}, rollout_since=None)
            return replace(record, champion=promoted, challenger=None).after(
                "promoted", self.version, why, traffic={self.version: 100}, **numbers
            )
        if decision.decision == ROLLED_BACK:
            return replace(record, champion=replace(champion, traffic_percent=100), challenger=None).after(
                "rolled_back", self.version, why, traffic={champion.version: 100}, **numbers
            )
        # Left: the next rollout of it watches from its own beginning.
        return replace(record, challenger=replace(challenger, rollout_since=None)).after(
            "left", self.version, why, **numbers
        )

    def _register(self, record: ModelRecord, decision: Decision) -> None:
        registry = ModelRegistry(self.context.spec.services.get("tracking_uri", ""), self.model_name)
        assert record.champion is not None
        registry.set_alias(CHAMPION, record.champion.version)
        if record.challenger is None:
            registry.delete_alias(CHALLENGER)
        registry.tag(self.version, "hops.rollout", decision.decision)
        registry.tag(self.version, "hops.rollout_reasons", "; ".join(decision.reasons)[:5000])


def _decision_of(event: Mapping[str, Any]) -> Decision:
    """The decision that a promotion or a rollback recorded."""
    return Decision(
        decision=event["event"],
        reasons=tuple(event.get("reasons") or [event["why"]]),
        findings=tuple(Finding(**finding) for finding in event.get("findings") or ()),
        canary=Counts(**(event.get("canary") or {})),
        stable=Counts(**(event.get("stable") or {})),
        watched_s=event.get("watched_s", 0.0),
    )


def _is_numeric(kind: Any, pa: Any) -> bool:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _write(
    context: StepContext,
    decision: Decision,
    record: ModelRecord,
    model_name: str,
    version: int,
    watch: Watch,
    limits: Limits,
) -> Artifact:
    champion = record.champion.version if record.champion else version
    traffic = {str(champion): 100}
    if record.challenger is not None:
        share = record.challenger.traffic_percent
        traffic = {str(champion): 100 - share, str(record.challenger.version): share}
    facts: Mapping[str, Any] = {
        "model_name": model_name,
        "version": version,
        "decision": decision.decision,
        "reasons": list(decision.reasons),
        "champion": champion,
        "traffic": traffic,
    }
    context.progress(1.0, f"version {version}: {decision.decision} ({'; '.join(decision.reasons)})")
    metrics = {
        "canary_requests": float(decision.canary.requests),
        "canary_errors": float(decision.canary.errors),
        "stable_requests": float(decision.stable.requests),
        "stable_errors": float(decision.stable.errors),
        "watched_s": round(decision.watched_s, 3),
    }
    with context.output() as writer:
        document = {**facts, **asdict(decision), "watch": asdict(watch), "limits": asdict(limits), "at": now()}
        (writer.path / "rollout.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        return writer.commit(metrics=metrics, properties=facts)
