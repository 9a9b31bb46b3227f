"""Reports in one sentence why a pod cannot be made, does not start, or has ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow.providers.cncf.kubernetes.utils.pod_manager import detect_pod_terminate_early_issues
from kubernetes import client
from kubernetes.client.rest import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.launchers.kubernetes.manifests import BASE

_RIGHTS = "docs/howto/kubernetes.md lists the rights that steps as pods need"
_NEVER_STARTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "InvalidImageName")
_NOT_STARTED = ("StartError", "ContainerCannotRun")


@contextmanager
def calling_api(what: str) -> Iterator[None]:
    """Converts errors of the API; ``what`` names the action and the object.

    Raises:
        BadInput: a right is missing, the namespace does not exist, or Kubernetes rejects the object.
        HopsError: the quota is exhausted, or the API cannot be reached.
    """
    try:
        yield
    except ApiException as error:
        message = _message_of(error)
        if error.status == 403 and "exceeded quota" in message:
            raise HopsError(
                f"{what}: the namespace's quota is exhausted ({message}); wait until other pods end, ask for less in "
                "resources, or have the quota raised"
            ) from None
        if error.status in (401, 403):
            raise BadInput(f"{what}: Kubernetes denies it ({message}); {_RIGHTS}") from None
        if error.status == 404 and "namespaces" in message:
            raise BadInput(f"{what}: {message}; create it, or correct the connection's field 'namespace'") from None
        if error.status in (400, 422):
            raise BadInput(
                f"{what}: Kubernetes rejects it ({message}); correct pod_template_file or pod_override"
            ) from None
        raise HopsError(f"{what}: Kubernetes answers {error.status} {error.reason} ({message})") from None
    except HTTPError as error:
        raise HopsError(f"{what}: Kubernetes does not answer ({error})") from None
    except ConfigException as error:
        raise BadInput(
            f"{what}: the connection names no cluster ({error}); set kube_config_path or in_cluster"
        ) from None


def why_it_cannot_start(pod: client.V1Pod) -> HopsError | None:
    """Returns the error of a pod that will not start, however long one waits; None if it may."""
    name = full_name(pod)
    if issue := detect_pod_terminate_early_issues(pod):
        images = ", ".join(container.image or "(none)" for container in pod.spec.containers)
        return BadInput(
            f"{name}: the image {images} cannot be pulled ({_one_line(issue)}); correct its name, or imagePullSecrets"
        )
    for status in _statuses(pod):
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason in _NEVER_STARTS:
            return BadInput(
                f"{name}: container {status.name!r} cannot be started ({waiting.reason}: "
                f"{_one_line(waiting.message)}); correct pod_template_file or pod_override"
            )
    return None


def why_it_waits(pod: client.V1Pod, events: Iterable[Any]) -> str:
    """Describes what a pending pod waits for, by its conditions and its events."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return _one_line(f"{condition.reason}: {condition.message or ''}")
    warnings = [_one_line(f"{event.reason}: {event.message}") for event in events if event.type == "Warning"]
    if warnings:
        return warnings[-1]
    reasons = [status.state.waiting.reason for status in _statuses(pod) if status.state and status.state.waiting]
    return ", ".join(filter(None, reasons)) or "it is not scheduled yet"


def why_it_ended(pod: client.V1Pod, node: client.V1Node | None, *, is_gone: bool) -> HopsError | None:
    """Returns the error of a pod that ended without a result; None if only its exit code says anything.

    Args:
        pod: The pod as it was last seen.
        node: Its node; None if unknown.
        is_gone: Whether it was deleted, but not by this worker.
    """
    name, where = full_name(pod), pod.spec.node_name
    state = base_state(pod)
    ended = state.terminated if state else None
    if ended is not None and ended.message:
        with suppress(ValueError, KeyError, TypeError):
            left = json.loads(ended.message)
            return (HopsError if left["retryable"] else BadInput)(f"{name}: {left['error']}")
    if ended is not None and ended.reason == "OOMKilled":
        resources = pod.spec.containers[0].resources
        limit = (resources.limits if resources is not None else None) or {}
        return HopsError(
            f"{name} was killed because it used more memory than {limit.get('memory', 'its node has')}; raise "
            "resources.limits.memory in pod_override, or give the step less data"
        )
    if ended is not None and ended.reason in _NOT_STARTED:
        return BadInput(
            f"{name}: the image {pod.spec.containers[0].image} has no runtime environment at the path of the "
            f"connection's field 'runtime' ({_one_line(ended.message)}); build it with one, or correct the path"
        )
    if pod.status.reason == "Evicted":
        return HopsError(
            f"{name} was evicted from node {where} ({_one_line(pod.status.message)}); request the memory and disk that "
            "the step uses in resources.requests"
        )
    if pod.status.reason:
        return HopsError(f"{name} was ended by Kubernetes ({pod.status.reason}: {_one_line(pod.status.message)})")
    if not is_gone:
        return None
    if is_unreachable(pod):
        return HopsError(f"{name} is lost with its node {where}, which no longer answers; a retry uses another node")
    if node is not None and node.spec.unschedulable:
        return HopsError(f"{name} was evicted because its node {where} is being drained; a retry uses another node")
    return HopsError(f"{name} was deleted, by a user, a drained node or a preemption, while the step was running")


def base_state(pod: client.V1Pod) -> client.V1ContainerState | None:
    """Returns the state of the step's container; None if it has none yet."""
    return next((status.state for status in _statuses(pod) if status.name == BASE), None)


def is_unreachable(pod: client.V1Pod) -> bool:
    """Returns whether Kubernetes hears nothing of the pod's node: the pod is not ready, though its containers are."""
    conditions = {each.type: each.status for each in pod.status.conditions or ()}
    return conditions.get("Ready") == "False" and conditions.get("ContainersReady") == "True"


def full_name(pod: client.V1Pod) -> str:
    """Returns a pod's name for messages."""
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"


def _statuses(pod: client.V1Pod) -> list[client.V1ContainerStatus]:
    return [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]


def _message_of(error: ApiException) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(error.body)["message"])
    return str(error.reason)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
