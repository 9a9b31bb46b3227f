"""Marks the artifacts of a store that a garbage collection retains, and finds the unneeded ones.

References are values of parsed manifests and records, compared in the spelling of the store's root.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Manifest, name_in
from airflow_hops.core.artifacts.properties import DeploymentProperties
from airflow_hops.core.capture_layout import name_time
from airflow_hops.core.errors import BadInput, HopsError, UnreadableFile
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.models.logged_windows import logged_windows
from airflow_hops.core.models.model_record import read_records
from airflow_hops.core.store.artifact_store import FROZEN, ArtifactStore
from airflow_hops.core.store.files import STAGING, reaching_store
from airflow_hops.core.store.uses import USES_NAME
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.governance.core import monitors
from airflow_hops.extensions.governance.core.captured import sort_out
from airflow_hops.extensions.governance.core.removing import remove_empty_folders
from airflow_hops.extensions.governance.core.rule import (
    CapturedFiles,
    IsActive,
    Removal,
    RetentionPlan,
    RetentionRule,
    StoreListing,
    Track,
    Tracked,
    in_threads,
)
from airflow_hops.extensions.governance.core.trainings import StoredTraining, read_trainings, unneeded_trainings

HIDDEN_NAME = "manifest.removing.json"
"""Name of the manifest of an artifact while it is being removed."""

TRACKED = "MLflow entry"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]+")
_CHECKPOINT = re.compile(r"_state/checkpoints/([^/]+)/([^/]+)/.+")
_STAGED = re.compile(rf"(([^/]+)/([^/]+)/.+?{re.escape(STAGING)}[^/]+)/.+")


@dataclass(frozen=True)
class Scope:
    """Places and rules of a garbage collection.

    Attributes:
        store: The artifact store.
        rule: Runs to retain.
        is_active: Returns whether a DAG run is queued or running, or None for a run of another Airflow.
        now: Time at which ages are measured.
        captures: Store at the capture base path; None to keep all captured requests.
        tracked: Lists and deletes MLflow's entries.
        track: Shows the progress of listing and removing.
    """

    store: ArtifactStore
    rule: RetentionRule
    is_active: IsActive
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    captures: ArtifactStore | None = None
    tracked: Tracked = lambda delete: ()
    track: Track = lambda items, description, total: items


@dataclass(frozen=True, kw_only=True)
class StoredArtifact(Removal):
    """An artifact in the store.

    Attributes:
        inputs: Addresses of the inputs in this store that are retained with it.
        references: Other addresses in this store that its manifest names.
        manifest: The manifest, without its list of files.
    """

    inputs: frozenset[str]
    references: frozenset[str]
    manifest: Manifest


@dataclass
class _Run:
    """The folder of a DAG run, or another one of the DAG; ``newest`` is the time of its last artifact or use."""

    folder: str
    dag_id: str
    run_id: str
    newest: datetime
    artifacts: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    use_files: list[str] = field(default_factory=list)
    is_retained: bool = False


class Marking:
    """One pass over the store, which it lists once."""

    def __init__(self, scope: Scope) -> None:
        self._of, self._store = scope, scope.store
        rule = scope.rule
        self._oldest = scope.now - timedelta(days=rule.keep_days)
        self._age = f"younger than {rule.keep_days:g} days"
        self._older = f"older than {rule.keep_days:g} days"
        self._tracked = scope.tracked(())
        root = self._store.root
        with reaching_store(root):
            (sizes,) = (self._store.files.sizes(root, staged=True) for _ in scope.track([root], "Listing the store", 1))
        self._sizes = {path: size for path, size in sizes.items() if not _STAGED.fullmatch(path)}
        self._staged = {path: size for path, size in sizes.items() if path not in self._sizes}
        self.hidden = set(self._folders_with(HIDDEN_NAME))
        self._artifacts = dict[str, StoredArtifact]()
        self._runs: dict[str, dict[str, _Run]] = defaultdict(dict)
        records = dict(read_records(self._store))
        self._listing = StoreListing(self._store, self._sizes, scope.now, self._oldest, self._may_be_active, records)
        self._trainings = read_trainings(self._listing)
        self._reasons: dict[str, str] = {}

    def plan(self, removable: Collection[str] | None = None) -> RetentionPlan:
        """Marks everything, and returns the plan, which removes only the artifacts in ``removable``."""
        self._artifacts = self._read_artifacts()
        self._mark_runs()
        self._mark_records()
        pending = list(self._reasons)
        while pending:
            uri = pending.pop()
            for address in self._artifacts[uri].inputs:
                pending += self._mark(address, f"input of {uri}", must_exist=True)
            for address in self._artifacts[uri].references:
                pending += self._mark(address, f"named by {uri}")
        unneeded = [each for uri, each in sorted(self._artifacts.items()) if uri not in self._reasons]
        artifacts = [each for each in unneeded if removable is None or each.uri in removable]
        removed = {each.uri for each in artifacts}
        removals = [
            Removal(entry["uri"], TRACKED, as_utc(entry["created_at"]), 0, f"its model is removed: {entry['model']}")
            for entry in self._tracked
            if self._holder(entry["model"]) in removed
        ]
        removals += [*self._checkpoints(), *self._unfinished()]
        removals += unneeded_trainings(
            self._listing, self._trainings, self._needs_training, f"{self._older}, its run and model are not retained"
        )
        reasons, size_bytes = dict(self._reasons), sum(self._artifacts[uri].size_bytes for uri in self._reasons)
        if self._of.captures is not None:
            for model, needs in self._captured_needs().items():
                removal, needed, needed_bytes = sort_out(self._of.captures, model, needs, f"{self._older}, not needed")
                removals += [removal] if removal else []
                reasons, size_bytes = {**reasons, **needed}, size_bytes + needed_bytes
        return RetentionPlan({each.uri: each for each in [*removals, *artifacts]}, reasons, size_bytes)

    def _may_be_active(self, dag_id: str, run_id: str) -> bool:
        active = self._of.is_active(dag_id, run_id)
        return not self._of.rule.unknown_runs if active is None else active

    def remove_remains(self) -> None:
        """Removes records of uses, and empty folders, of runs that are gone."""
        for run in (run for of_dag in self._runs.values() for run in of_dag.values()):
            # The run may have been cleared since the marking.
            if run.is_retained or run.artifacts & self._reasons.keys() or self._may_be_active(run.dag_id, run.run_id):
                continue
            for uri in run.use_files:
                self._store.remove_text(uri)
            remove_empty_folders(self._store.files, run.folder)
        remove_empty_folders(self._store.files, f"{self._store.root}/_state")  # of jobs and checkpoints that ended

    def _folders_with(self, name: str) -> list[str]:
        return [f"{self._store.root}/{path[: -len(name) - 1]}" for path in self._sizes if path.endswith(f"/{name}")]

    def _holder(self, address: str) -> str | None:
        """Returns the artifact that an address is in."""
        while len(address) > len(self._store.root):
            if address in self._artifacts:
                return address
            address = address.rpartition("/")[0]
        return None

    def _mark(self, address: str, reason: str, *, must_exist: bool = False) -> list[str]:
        """Marks the artifact that an address is in; returns it if it was not marked before.

        Raises:
            BadInput: there is none, and ``must_exist``.
        """
        uri = self._holder(self._store.files.canonical(address))
        if uri is None and must_exist:
            raise BadInput(
                f"nothing is removed: {address} ({reason}) is not in the store {self._store.root}, so what it needs is "
                "unknown; if the store was moved, give its connection the former address, by a link if necessary; if "
                "the artifact was deleted, clear the task that makes it, or delete what names it, too"
            )
        if uri is None or uri in self._reasons:
            return []
        self._reasons[uri] = reason
        return [uri]

    def _mark_value(self, value: object, reason: str) -> None:
        for address in _addresses(value):
            self._mark(address, reason)

    def _read_artifacts(self) -> dict[str, StoredArtifact]:
        """Reads all manifests, including renamed ones, and skips those that are data of another artifact."""
        addresses = {*self._folders_with(MANIFEST_NAME), *self.hidden}
        texts = in_threads(self._manifest_text, addresses, self._of.track, "Reading manifests")
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
                reason=f"{self._older}, not in the newest {self._of.rule.keep_runs} runs, not needed",
                # A model does not need the one that it continues from: all former champions would be retained.
                # An evaluation's champion may be gone: its server had a copy.
                inputs=frozenset(
                    each.uri
                    for role, group in manifest.inputs.items()
                    if role != COMPARED or manifest.kind not in ("model", "evaluation")
                    for each in group
                ),
                references=frozenset(_addresses([manifest.properties, manifest.cache_key_parts])),
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
        """Marks frozen schemas, and the runs that are active, young or among the newest of their DAG.

        A run has artifacts, records of trainings, or both.
        """
        for uri, artifact in self._artifacts.items():
            by = artifact.manifest.producer
            self._run_of(uri, by.dag_id, by.run_id, artifact.created_at).artifacts.add(uri)
        for folder, value in in_threads(self._read_uses, self._folders_with(USES_NAME)).items():
            if value is not None:
                run = self._run_of(folder, value["dag_id"], value["run_id"], as_utc(value["at"]))
                run.uses.update(value["artifacts"])
                run.use_files.append(f"{folder}/{USES_NAME}")
        for training in self._trainings:
            self._run_of_training(training)
        for dag, of_dag in self._runs.items():
            frozen = of_dag.pop(FROZEN, None)
            for uri in frozen.artifacts if frozen else ():
                self._mark(uri, f"frozen schema of {name_in(dag)}")
            newest_first = sorted(of_dag.values(), key=lambda run: run.newest, reverse=True)
            for number, run in enumerate(newest_first):
                if run.newest > self._oldest:
                    reason = f"its run is {self._age}"
                elif number < self._of.rule.keep_runs:
                    reason = f"its run is among the newest {self._of.rule.keep_runs} of {name_in(dag)}"
                elif active := self._of.is_active(run.dag_id, run.run_id):
                    reason = "its run is queued or running"
                elif active is None and not self._of.rule.unknown_runs and not dag.startswith(("_", "@")):
                    reason = "this Airflow does not know its run (--unknown-runs removes it)"
                else:
                    continue
                run.is_retained = True
                for uri in run.artifacts:
                    self._mark(uri, reason)
                for uri in run.uses:
                    self._mark(uri, f"used by run {run.run_id} of {name_in(dag)}")

    def _run_of(self, uri: str, dag_id: str, run_id: str, time: datetime) -> _Run:
        """Returns the run of an address, by its first two segments: DAG, or a name that begins with ``_``, and run."""
        root = self._store.root
        if uri.startswith(f"{root}/_state/"):  # a shared artifact belongs to the run that made it
            uri = self._store.uri(dag_id, run_id)
        dag, _, rest = uri.removeprefix(f"{root}/").partition("/")
        name = rest.partition("/")[0]
        run = self._runs[dag].setdefault(name, _Run(f"{root}/{dag}/{name}", dag_id, run_id, time))
        run.newest = max(run.newest, time)
        return run

    def _run_of_training(self, training: StoredTraining) -> _Run:
        uri = self._store.uri(name_in(training.folder), training.record.dag_run_id)
        return self._run_of(uri, training.dag_id, training.record.dag_run_id, training.ended)

    def _needs_training(self, training: StoredTraining) -> bool:
        model = training.record.tags.get("hops.model", "")
        is_marked = self._holder(self._store.files.canonical(model)) in self._reasons if model else False
        return is_marked or self._run_of_training(training).is_retained

    def _read_uses(self, folder: str) -> dict[str, Any] | None:
        """Reads a file of uses; None if it was removed."""
        uri = f"{folder}/{USES_NAME}"
        try:
            value = self._store.read_json(uri)
            as_utc(value["at"])
            return {**value, "artifacts": [str(each) for each in value["artifacts"]]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableFile(uri, f": expected the artifacts that a task uses ({error}); remove it") from error

    def _mark_records(self) -> None:
        """Marks artifacts that serve, that have an alias, that a rollback may restore, or that monitors need."""
        returns: set[tuple[str, int]] = set()
        for model, record in self._listing.models.items():
            for role, served in record.serving.items():
                reason = f"{role} of model {model}"
                for address in filter(None, (served.model.uri, served.statistics, served.schema)):
                    self._mark(address, reason, must_exist=True)
                self._mark_value(served.to_dict(), reason)
            for window in (window for log in logged_windows(self._store, model) for window in log):
                self._mark(window.snapshot, f"has rows of the log of model {model}")
            serving = {each.version for each in record.serving.values()}
            former = [version for version in record.champions() if version not in serving]
            former = former[: self._of.rule.keep_versions]
            returns |= {(model, version) for version in former}
            for event in record.history:  # a deployment may have been removed while its version served
                if event.model is not None and event.version in former:
                    self._mark(event.model, f"version {event.version} of model {model} may serve again")
        for entry in self._tracked:
            for alias in entry["aliases"]:
                self._mark(entry["model"], f"alias {alias} of {entry['uri']} in MLflow")
        for uri, artifact in self._artifacts.items():
            if artifact.kind == "deployment":
                properties = DeploymentProperties.of(artifact.manifest)
                if (properties.model_name, properties.version) in returns:
                    self._mark(uri, f"version {properties.version} of model {properties.model_name} may serve again")
        for value, reason in monitors.needed(self._listing):
            self._mark_value(value, reason)

    def _captured_needs(self) -> dict[str, list[CapturedFiles]]:
        """Returns the needs for captured requests of each model that has a record."""
        needs = {model: [CapturedFiles(self._age, name_time(self._oldest))] for model in self._listing.models}
        for model, record in self._listing.models.items():
            if record.challenger is not None:
                since = name_time(as_utc(record.challenger.since))
                needs[model].append(
                    CapturedFiles(f"compared by the rollout of version {record.challenger.version}", since)
                )
        retained = {uri: self._artifacts[uri].manifest for uri in self._reasons}
        for model, need in monitors.captured(self._listing, retained):
            if model in needs:
                needs[model].append(need)
        return needs

    def _checkpoints(self) -> Iterator[Removal]:
        """Yields the checkpoints of failed trainings, by run."""
        sizes = Counter[tuple[str, ...]]()
        for path, size_bytes in self._sizes.items():
            if match := _CHECKPOINT.fullmatch(path):
                sizes[match.groups()] += size_bytes
        for (dag, name), size_bytes in sorted(sizes.items()):
            run = self._runs.get(dag, {}).get(name)
            if run is not None and not run.is_retained:
                uri = f"{self._store.root}/_state/checkpoints/{dag}/{name}"
                yield Removal(uri, "checkpoints", run.newest, size_bytes, "its run is over, and not retained")

    def _unfinished(self) -> Iterator[Removal]:
        """Yields staging folders of tasks that were killed and not tried again."""
        folders = defaultdict[tuple[str, ...], list[str]](list)
        for path in self._staged:
            if match := _STAGED.fullmatch(path):
                folders[match.groups()].append(path)
        for (folder, dag, name), paths in sorted(folders.items()):
            run = self._runs.get(dag, {}).get(name)
            if self._may_be_active(*((run.dag_id, run.run_id) if run else (name_in(dag), name_in(name)))):
                continue
            times = self._listing.modified(paths)
            if len(times) == len(paths) and (newest := max(times.values())) < self._oldest:  # its task has not ended
                size_bytes, reason = sum(self._staged[path] for path in paths), f"{self._older}, not completed"
                yield Removal(f"{self._store.root}/{folder}", "unfinished artifact", newest, size_bytes, reason)


def _addresses(value: object) -> Iterator[str]:
    """Yields the URIs among the texts of a JSON value, also those within a longer text."""
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, str):
        if "://" in value:
            yield value
            yield from _ADDRESS.findall(value)
    elif isinstance(value, Iterable):
        for each in value:
            yield from _addresses(each)
