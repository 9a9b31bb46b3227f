"""Pods of the ranks above the least number of a training with a range: made one by one, and some may be missing."""

# The step's pod and the least number of ranks start as a whole. Only when they run, the follower makes the other pods:
# before, these would take room from the whole, of which they might be the ones that it lacks. The step takes those that
# connect in time, and writes down all ranks that train. Pods of others, pending behind a gate or for a node, or running
# by then, are deleted. All of it is in the store, so that any later follower goes on with it.

from __future__ import annotations

import json
import logging
import time
from typing import Any

from kubernetes import client
from kubernetes.client.rest import ApiException

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.kubernetes.runner.failures import message_of
from airflow_hops.extensions.kubernetes.runner.in_pod import CHOSEN, MORE
from airflow_hops.extensions.kubernetes.runner.manifests import MORE_RANKS, ranks_of

log = logging.getLogger(__name__)

_POLL_S = 2.0


class MoreRanks:
    """The pods of a training above the least number.

    Args:
        api: The API.
        store: The artifact store.
        record: Address of the folder of the step's pod in the store.
    """

    def __init__(self, api: client.CoreV1Api, store: ArtifactStore, record: str) -> None:
        self._api, self._store, self._record = api, store, record
        self._missing: list[dict[str, Any]] | None = None
        self._refusal = ""
        self._next = 0.0

    def look(self, pod: client.V1Pod) -> None:
        """Makes the pods once the step's pod runs, and deletes those that did not come in time."""
        is_range = MORE_RANKS in (pod.metadata.annotations or {})
        if not is_range or pod.status.phase != "Running" or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _POLL_S
        try:
            chosen = json.loads(self._store.read_text(f"{self._record}/{CHOSEN}"))
        except FileNotFoundError:
            self._create(pod)
        else:
            self._delete_others(pod, chosen)
            self._next = float("inf")

    def _create(self, pod: client.V1Pod) -> None:
        if self._missing is None:
            self._missing = json.loads(self._store.read_text(f"{self._record}/{MORE}"))
        for rank in list(self._missing):
            try:
                self._api.create_namespaced_pod(pod.metadata.namespace, rank)
            except ApiException as error:
                if error.status != 409:  # an earlier follower has made it
                    if self._refusal != (refusal := message_of(error)):
                        self._refusal = refusal
                        log.warning("The pod of %s is not made now: %s", rank["spec"]["hostname"], refusal)
                    return
            self._missing.remove(rank)

    def _delete_others(self, pod: client.V1Pod, chosen: list[str]) -> None:
        pods = self._api.list_namespaced_pod(pod.metadata.namespace, label_selector=ranks_of(pod.metadata.name)).items
        others = [rank for rank in pods if rank.spec.hostname not in chosen]
        for rank in others:
            self._api.delete_namespaced_pod(rank.metadata.name, rank.metadata.namespace)
        if others:
            names = ", ".join(f"{rank.spec.hostname} ({rank.status.phase})" for rank in others)
            log.info("The training starts on %d ranks; pods of others are deleted: %s", len(chosen), names)
