"""Garbage collection of a store: finds and removes the artifacts that nothing needs.

It marks and sweeps. Roots are the artifacts of champions and challengers, of former champions that a rollback may
restore, of versions with an alias in MLflow, of frozen schemas, of active DAG runs, of runs that the rule retains, and
those that monitors need. Everything that the
manifest of a retained artifact names is retained, down to the snapshot, so no lineage link of a retained artifact
breaks. Captured requests, records of trainings, checkpoints and MLflow's entries follow. Staging folders of tasks that
were killed are removed by their age.

Removal is safe while tasks run. A new reference to an old artifact can only come from a task that first writes
``uses.json`` (:mod:`airflow_hops.core.store.uses`) or a record, and then reads the manifest. The collection renames the
manifests of all candidates, marks a second time, and restores the manifests of those that are then referred to. Hence
either the task finds no manifest, or the collection sees its reference. A killed collection leaves renamed manifests;
the next one continues with them. What depends on an artifact is removed before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, cache_key
from airflow_hops.core.errors import HopsError
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.extensions.governance.core.marking import HIDDEN_NAME, TRACKED, Marking, Scope, StoredArtifact
from airflow_hops.extensions.governance.core.removing import remove_empty_folders, take_away
from airflow_hops.extensions.governance.core.rule import Removal, RetentionPlan, in_threads
from airflow_hops.extensions.governance.core.trainings import TrainingRemoval


class GarbageCollection(Scope):
    """A garbage collection of a store, with the captured requests and MLflow's entries of its models.

    Only one collection may work on a store at a time; on a local store, a lock ensures that.
    """

    def plan(self) -> RetentionPlan:
        """Finds unneeded artifacts and files.

        Raises:
            BadInput: a manifest or a record cannot be read, or an input of a retained artifact or a served model is not
                in the store. Nothing is then removed, since any artifact may be needed.
            HopsError: MLflow or the capture path cannot be reached.
        """
        return Marking(self).plan()

    def remove(self) -> RetentionPlan:
        """Removes unneeded artifacts and files, and the step cache's entries for them.

        Returns:
            The plan with the removals that took place.

        Raises:
            BadInput: as :meth:`plan`.
            HopsError: as :meth:`plan`, or files could not be removed, or another collection is running.
        """
        with exclusive(self.store, self.store.internal("_state", "retention"), "garbage collection", 1.0):
            return self._remove()

    def _remove(self) -> RetentionPlan:
        candidates = [uri for uri, each in self.plan().removals.items() if isinstance(each, StoredArtifact)]
        self._rename_manifests(candidates, MANIFEST_NAME, HIDDEN_NAME)
        try:
            marking = Marking(self)
            plan = marking.plan(marking.hidden)
            if tracked := [uri for uri, each in plan.removals.items() if each.kind == TRACKED]:
                self.tracked(tracked)
        except HopsError:
            self._rename_manifests(candidates, HIDDEN_NAME, MANIFEST_NAME)
            raise
        self._rename_manifests(marking.hidden & plan.kept.keys(), HIDDEN_NAME, MANIFEST_NAME)
        removed = {
            removal.uri: removal
            for removal in self.track(plan.removals.values(), "Removing", len(plan.removals))
            if self._remove_files(removal)
        }
        marking.remove_remains()
        return replace(plan, removals=removed)

    def _remove_files(self, removal: Removal) -> bool:
        """Returns False if the run was cleared since it was marked: its artifact stays, or is published again."""
        store, uri = self.store, removal.uri
        if removal.kind == TRACKED:
            return True
        if removal.paths and self.captures is not None:
            in_threads(self.captures.remove_text, [f"{uri}/{path}" for path in removal.paths])
            return True
        if isinstance(removal, TrainingRemoval):
            training = removal.training
            if self.is_active(training.dag_id, training.record.dag_run_id):
                return False
            for file in removal.files:
                store.remove_text(file)
            return True
        if isinstance(removal, StoredArtifact):
            by = removal.manifest.producer
            if self.is_active(by.dag_id, by.run_id):
                self._rename_manifests([uri], HIDDEN_NAME, MANIFEST_NAME)
                return False
            try:
                if not take_away(store.files, uri):
                    return False
            except OSError as error:
                raise HopsError(f"{uri}: it could not be removed ({error}); check the rights to that folder") from error
            _remove_cache_entry(store, removal)
        else:
            store.remove_folder(uri)
            if names := store.names(uri):
                raise HopsError(f"{uri}: {names[0]!r} could not be removed; check the rights to that folder")
        remove_empty_folders(store.files, uri)
        return True

    def _rename_manifests(self, uris: Iterable[str], old: str, new: str) -> None:
        """Renames manifests of artifacts, except of those that were removed or replaced in the meantime."""
        store = self.store

        def rename(uri: str) -> None:
            if new == MANIFEST_NAME and store.exists(uri):
                store.files.remove(f"{uri}/{old}")
                return
            with contextlib.suppress(FileNotFoundError):
                store.files.rename(f"{uri}/{old}", f"{uri}/{new}")

        in_threads(rename, uris)


def _remove_cache_entry(store: ArtifactStore, artifact: StoredArtifact) -> None:
    """Removes the entry of the step cache that names an artifact; it would be skipped anyway."""
    by = artifact.manifest.producer
    uri = f"{store.internal('_cache', by.dag_id, by.task_id, cache_key(artifact.manifest.cache_key_parts))}.json"
    with contextlib.suppress(FileNotFoundError, HopsError):
        if store.read_json(uri)["artifact"]["uri"] == artifact.uri:
            store.remove_text(uri)
