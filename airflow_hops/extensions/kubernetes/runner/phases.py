"""Times of a pod as a phase of its step."""

from __future__ import annotations

import time

from kubernetes import client

from airflow_hops.core.steps.protocol import Phase
from airflow_hops.extensions.kubernetes.runner.failures import base_state


def pod_phase(pod: client.V1Pod) -> Phase | None:
    """Returns a pod's time from its creation to its end, or until now if it still runs; None if the pod is gone.

    Kubernetes gives times in whole seconds.
    """
    if pod.metadata.creation_timestamp is None:
        return None
    conditions = {each.type: each for each in pod.status.conditions or () if each.status == "True"}
    state = base_state(pod)
    running, ended = (state.running, state.terminated) if state else (None, None)
    times = {
        "scheduled": getattr(conditions.get("PodScheduled"), "last_transition_time", None),
        "running": getattr(ended or running, "started_at", None),
        "ended": getattr(ended, "finished_at", None),
    }
    events = {name: moment.timestamp() for name, moment in times.items() if moment is not None}
    attributes = {
        "k8s.pod.name": pod.metadata.name,
        "k8s.namespace.name": pod.metadata.namespace,
        "k8s.node.name": pod.spec.node_name or "",
    }
    return Phase(
        "pod", pod.metadata.creation_timestamp.timestamp(), events.get("ended", time.time()), attributes, events
    )
