"""Garbage collection of a store: finds and removes the artifacts that nothing needs.

It marks and sweeps. Roots are the artifacts of champions and challengers, of former champions that a rollback may
restore, of frozen schemas, of the newest decision of each retraining monitor and the newest report of each served
version, of active DAG runs, and of runs that the rule retains. Everything that the manifest of a retained artifact
names is retained, down to the snapshot, so no lineage link of a retained artifact breaks.

Removal is safe while tasks run. A new reference to an old artifact can only come from a task that first writes
``uses.json`` (:mod:`airflow_hops.core.store.uses`) or a record, and then reads the manifest. The collection renames the
manifests of all candidates, marks a second time, and restores the manifests of those that are then referred to. Hence
either the task finds no manifest, or the collection sees its reference. A killed collection leaves renamed manifests;
the next one continues with them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, BadInput, HopsError, Manifest, cache_key
from airflow_hops.core.contract.properties import DeploymentProperties
from airflow_hops.core.contract.retraining.situation import as_utc
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.model_records import read_records
from airflow_hops.core.store.monitoring import listed_reports, read_report
from airflow_hops.core.store.uses import USES_NAME

HIDDEN_NAME = "manifest.removing.json"
"""Name of the manifest of an artifact while it is being removed."""

IsActive = Callable[[str, str], bool]
"""Returns whether a DAG run, by DAG id and run id, is queued or running."""


@dataclass(frozen=True)
class RetentionRule:
    """Runs to retain although nothing that serves needs them.

    Attributes:
        keep_days: Age in days, counted from the newest artifact of a run, up to which the run is retained.
        keep_runs: Number of newest runs of each DAG to retain.
        keep_versions: Number of newest former champions of each model to retain for a rollback.

    Raises:
        BadInput: a number is out of range.
    """

    keep_days: float = 30
    keep_runs: int = 10
    keep_versions: int = 3

    def __post_init__(self) -> None:
        for name, least in (("keep_days", 1), ("keep_runs", 0), ("keep_versions", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise BadInput(f"{name} is {value!r}, expected a number of at least {least}")


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact in the store.

    Attributes:
        created_at: Time of its publication, with its zone.
        size_bytes: Size of its files.
        references: Addresses in this store that its manifest names.
        manifest: The manifest, without its list of files.
    """

    uri: str
    kind: str
    created_at: datetime
    size_bytes: int
    references: frozenset[str]
    manifest: Manifest


@dataclass(frozen=True)
class RetentionPlan:
    """The result of marking.

    Attributes:
        removals: Artifacts that nothing needs, by address.
        kept: Reasons for retaining the other artifacts, by address.
        size_bytes: Size of the retained artifacts.
    """

    removals: Mapping[str, StoredArtifact]
    kept: Mapping[str, str]
    size_bytes: int


def plan_removals(
    store: ArtifactStore, rule: RetentionRule, is_active: IsActive, now: datetime | None = None
) -> RetentionPlan:
    """Finds the artifacts that nothing needs.

    Args:
        store: The store.
        rule: Runs to retain.
        is_active: Returns whether a DAG run is queued or running.
        now: Time at which ages are measured; None for the present.

    Raises:
        BadInput: a manifest or a record cannot be read. Nothing is then removed, since it may name any artifact.
    """
    return _Marking(store, rule, is_active, now or datetime.now(UTC)).plan()


def remove_unneeded(
    store: ArtifactStore,
    rule: RetentionRule,
    is_active: IsActive,
    now: datetime | None = None,
    progress: Callable[[StoredArtifact], None] = lambda artifact: None,
) -> RetentionPlan:
    """Removes the artifacts that nothing needs, with the entries of the step cache that name them.

    Only one collection may work on a store at a time; on a local store, a lock ensures that. The arguments are as in
    :func:`plan_removals`; ``progress`` is called with each artifact after its removal.

    Returns:
        The plan, with the artifacts that were removed.

    Raises:
        BadInput: as :func:`plan_removals`.
        HopsError: files of an artifact could not be removed, or another collection is running.
    """
    try:
        with store.lock(store.uri("_state", "retention"), timeout_s=1.0):
            candidates = plan_removals(store, rule, is_active, now).removals
            _in_threads(lambda uri: _rename_manifest(store, uri, MANIFEST_NAME, HIDDEN_NAME), candidates)
            plan = plan_removals(store, rule, is_active, now)
            hidden = set(store.files.folders_with(store.root, HIDDEN_NAME))
            _in_threads(lambda uri: _rename_manifest(store, uri, HIDDEN_NAME, MANIFEST_NAME), hidden & plan.kept.keys())
            removals = {uri: plan.removals[uri] for uri in sorted(hidden & plan.removals.keys())}
            for uri, artifact in removals.items():
                _remove_cache_entry(store, artifact)
                store.remove_folder(uri)
                if names := store.names(uri):
                    raise HopsError(f"{uri}: {names[0]!r} could not be removed; check the rights to that folder")
                progress(artifact)
            return RetentionPlan(removals, plan.kept, plan.size_bytes)
    except TimeoutError:
        raise HopsError(f"{store.root}: another garbage collection is at work; try again when it has ended") from None


@dataclass
class _Run:
    """A DAG run, or another folder below a DAG's: ``newest`` is the time of its last artifact or use."""

    dag_id: str
    run_id: str
    newest: datetime
    artifacts: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)


class _Marking:
    """One pass over the store."""

    def __init__(self, store: ArtifactStore, rule: RetentionRule, is_active: IsActive, now: datetime) -> None:
        self._store, self._rule, self._is_active, self._now = store, rule, is_active, now
        self._address = re.compile(re.escape(store.root) + r'/[^"\\\s]+')
        self._artifacts: dict[str, StoredArtifact] = {}
        self._reasons: dict[str, str] = {}

    def plan(self) -> RetentionPlan:
        self._artifacts = self._read_artifacts()
        self._mark_runs()
        self._mark_records()
        pending = list(self._reasons)
        while pending:
            uri = pending.pop()
            for reference in self._artifacts[uri].references:
                pending += self._mark(reference, f"input of {uri}")
        removals = {uri: each for uri, each in sorted(self._artifacts.items()) if uri not in self._reasons}
        return RetentionPlan(removals, self._reasons, sum(self._artifacts[uri].size_bytes for uri in self._reasons))

    def _mark(self, address: str, reason: str) -> list[str]:
        """Marks the artifact that an address is in; returns it if it was not marked before."""
        while len(address) > len(self._store.root):
            if address in self._artifacts:
                if address in self._reasons:
                    return []
                self._reasons[address] = reason
                return [address]
            address = address.rpartition("/")[0]
        return []

    def _mark_text(self, text: str, reason: str) -> None:
        for address in self._address.findall(text):
            self._mark(address, reason)

    def _read_artifacts(self) -> dict[str, StoredArtifact]:
        """Reads all manifests, including renamed ones, and skips those that are data of another artifact."""
        files = self._store.files
        addresses = {*files.folders_with(self._store.root, MANIFEST_NAME)}
        addresses |= {*files.folders_with(self._store.root, HIDDEN_NAME)}
        texts = _in_threads(self._manifest_text, addresses)
        artifacts, damaged, inner = dict[str, StoredArtifact](), dict[str, HopsError](), set[str]()
        for uri, text in texts.items():
            if text is None:
                continue  # removed since it was listed
            try:
                manifest = Manifest.from_json(text, f"{uri}/{MANIFEST_NAME}")
            except HopsError as error:
                damaged[uri] = error
                continue
            inner.update(f"{uri}/{entry.path}" for entry in manifest.files if entry.path.endswith(f"/{MANIFEST_NAME}"))
            artifacts[uri] = StoredArtifact(
                uri=uri,
                kind=manifest.kind,
                created_at=as_utc(manifest.created_at),
                size_bytes=sum(entry.size_bytes for entry in manifest.files),
                references=frozenset(self._address.findall(text)),
                manifest=replace(manifest, files=()),
            )
        for uri, problem in damaged.items():
            if f"{uri}/{MANIFEST_NAME}" not in inner:
                raise BadInput(
                    f"nothing is removed, since the inputs of an artifact are unknown: {problem}"
                ) from problem
        return {uri: each for uri, each in artifacts.items() if f"{uri}/{MANIFEST_NAME}" not in inner}

    def _manifest_text(self, uri: str) -> str | None:
        for name in (MANIFEST_NAME, HIDDEN_NAME):
            with contextlib.suppress(FileNotFoundError):
                return self._store.read_text(f"{uri}/{name}")
        return None

    def _mark_runs(self) -> None:
        """Marks frozen schemas, and the runs that are active, young or among the newest of their DAG."""
        runs: dict[str, dict[str, _Run]] = defaultdict(dict)
        for uri, artifact in self._artifacts.items():
            (dag, name), by = self._run_of(uri), artifact.manifest.producer
            run = runs[dag].setdefault(name, _Run(by.dag_id, by.run_id, artifact.created_at))
            run.artifacts.add(uri)
            run.newest = max(run.newest, artifact.created_at)
        for folder, value in self._read_uses():
            (dag, name), at = self._run_of(folder), as_utc(value["at"])
            run = runs[dag].setdefault(name, _Run(value["dag_id"], value["run_id"], at))
            run.uses.update(value["artifacts"])
            run.newest = max(run.newest, at)
        for dag, of_dag in runs.items():
            frozen = of_dag.pop("_frozen", None)
            for uri in frozen.artifacts if frozen else ():
                self._mark(uri, f"frozen schema of {dag}")
            newest_first = sorted(of_dag.values(), key=lambda run: run.newest, reverse=True)
            for number, run in enumerate(newest_first):
                if run.newest > self._now - timedelta(days=self._rule.keep_days):
                    reason = f"its run is younger than {self._rule.keep_days:g} days"
                elif number < self._rule.keep_runs:
                    reason = f"its run is among the newest {self._rule.keep_runs} of {dag}"
                elif self._is_active(run.dag_id, run.run_id):
                    reason = "its run is queued or running"
                else:
                    continue
                for uri in run.artifacts:
                    self._mark(uri, reason)
                for uri in run.uses:
                    self._mark(uri, f"used by run {run.run_id} of {dag}")

    def _run_of(self, uri: str) -> tuple[str, str]:
        """Returns the first two segments of an address: DAG, or a name such as ``_backtest``, and run."""
        dag, _, rest = uri.removeprefix(f"{self._store.root}/").partition("/")
        return dag, rest.partition("/")[0]

    def _read_uses(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the folder and the content of each file of uses."""
        for folder in self._store.files.folders_with(self._store.root, USES_NAME):
            uri = f"{folder}/{USES_NAME}"
            try:
                value = self._store.read_json(uri)
                as_utc(value["at"])
                yield folder, {**value, "artifacts": [str(each) for each in value["artifacts"]]}
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise BadInput(f"{uri}: expected the artifacts that a task uses ({error}); remove it") from error

    def _mark_records(self) -> None:
        """Marks artifacts that serve, that a rollback may restore, or that monitors read."""
        store = self._store
        returns: set[tuple[str, int]] = set()
        for model, record in read_records(store):
            for role, served in record.serving.items():
                self._mark_text(json.dumps(served.to_dict()), f"{role} of model {model}")
            serving = {each.version for each in record.serving.values()}
            former = [version for version in record.champions() if version not in serving]
            returns |= {(model, version) for version in former[: self._rule.keep_versions]}
            for version in serving:
                for kind in ("skew", "performance"):
                    for _, name in listed_reports(store, model, version, kind)[:1]:
                        report = read_report(store, model, version, kind, name)
                        self._mark(report.uri, f"newest {kind} report of model {model}, version {version}")
        for uri, artifact in self._artifacts.items():
            if artifact.kind == "deployment":
                properties = DeploymentProperties.of(artifact.manifest)
                if (properties.model_name, properties.version) in returns:
                    self._mark(uri, f"version {properties.version} of model {properties.model_name} may serve again")
        state = store.uri("_state")
        for dag in store.names(state):
            for task in store.names(f"{state}/{dag}"):
                folder = f"{state}/{dag}/{task}/decisions"
                if names := [name for name in store.names(folder) if name.endswith(".json")]:
                    self._mark_text(store.read_text(f"{folder}/{names[-1]}"), f"newest decision of {dag}, task {task}")


def _in_threads(work: Callable[[str], Any], addresses: Iterable[str]) -> dict[str, Any]:
    """Calls a function with each address in threads, since a store may respond slowly."""
    ordered = sorted(addresses)
    with ThreadPoolExecutor(16) as pool:
        return dict(zip(ordered, pool.map(work, ordered), strict=True))


def _rename_manifest(store: ArtifactStore, uri: str, old: str, new: str) -> None:
    """Renames an artifact's manifest, unless the artifact was removed or replaced in the meantime."""
    if new == MANIFEST_NAME and store.exists(uri):
        store.files.remove(f"{uri}/{old}")
        return
    with contextlib.suppress(FileNotFoundError):
        store.files.rename(f"{uri}/{old}", f"{uri}/{new}")


def _remove_cache_entry(store: ArtifactStore, artifact: StoredArtifact) -> None:
    """Removes the entry of the step cache that names an artifact; it would be skipped anyway."""
    by = artifact.manifest.producer
    uri = f"{store.uri('_cache', by.dag_id, by.task_id, cache_key(artifact.manifest.cache_key_parts))}.json"
    with contextlib.suppress(FileNotFoundError, HopsError):
        if store.read_json(uri)["artifact"]["uri"] == artifact.uri:
            store.remove_text(uri)
