"""Reports in one sentence why a pod cannot be made, does not start, or has ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kubernetes import client
from kubernetes.client.rest import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from airflow_hops.core.errors import BadInput, HopsError, MachineLost
from airflow_hops.extensions.kubernetes.runner.manifests import BASE

_RIGHTS = "docs/extensions/kubernetes.md lists the rights that steps as pods need"
_NEVER_STARTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_PASSES = re.compile("timed out|deadline exceeded|failed to reserve", re.IGNORECASE)
_NODE_ENDS = ("NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated")
_NOT_STARTED = ("StartError", "ContainerCannotRun")
_NO_SUCH_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
# Other problems, such as an unresponsive registry, may be temporary: the node tries again.
_REFUSED = re.compile(
    "not found|manifest unknown|does not exist|denied|unauthorized|forbidden|authorization failed|authentication "
    "required|no match for platform|x509|server gave http response",
    re.IGNORECASE,
)
_ADVICE = {
    r"Insufficient|Too many pods": "ask for less in resources, or give the cluster more nodes",
    r"taint|affinity|selector|unschedulable": "correct nodeSelector, affinity and tolerations, or uncordon nodes",
    r"FailedMount|FailedAttachVolume|volume": "correct the volumes in pod_template_file or pod_override",
    "|".join(_PULLS): "check that the cluster's nodes reach the image's registry",
}


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
        message = message_of(error)
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
        raise HopsError(f"{what}: Kubernetes does not answer ({error})") from error
    except ConfigException as error:
        raise BadInput(
            f"{what}: the connection names no cluster ({error}); set kube_config_path or in_cluster"
        ) from None


def read_pod(api: client.CoreV1Api, name: str, namespace: str, node: str | None) -> client.V1Pod:
    """Returns a pod; one without a state if it is gone.

    Args:
        api: The API.
        name: Name of the pod.
        namespace: Its namespace.
        node: Its node, as far as known.

    Raises:
        BadInput: Kubernetes denies it.
        HopsError: the API cannot be reached.
    """
    with calling_api(f"read the pod {namespace}/{name}"):
        try:
            return api.read_namespaced_pod(name, namespace)
        except ApiException as error:
            if error.status != 404:
                raise
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, namespace=namespace),
        spec=client.V1PodSpec(containers=[], node_name=node),
        status=client.V1PodStatus(phase="Unknown"),
    )


def why_it_cannot_start(pod: client.V1Pod) -> HopsError | None:
    """Returns the error of a pod that will not start, however long one waits; None if it may."""
    name = full_name(pod)
    for status in _statuses(pod):
        waiting = status.state.waiting if status.state else None
        if waiting is None:
            continue
        problem = f"{waiting.reason}: {_one_line(waiting.message)}"
        is_refused = waiting.reason in _PULLS and _REFUSED.search(problem.replace(status.image, ""))
        if is_refused or waiting.reason in _NO_SUCH_IMAGE:
            return BadInput(
                f"{name}: the image {status.image} cannot be pulled ({problem}); correct its name, or imagePullSecrets"
            )
        if waiting.reason in _NEVER_STARTS and not _PASSES.search(problem):
            return BadInput(
                f"{name}: container {status.name!r} cannot be started ({problem}); create what it needs, or correct "
                "pod_template_file or pod_override"
            )
    return None


def why_it_waits(pod: client.V1Pod, events: Iterable[Any]) -> str:
    """Describes the reason why a pod is pending, from its conditions and events."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return _one_line(f"{condition.reason}: {condition.message or ''}")
    waiting = [status.state.waiting for status in _statuses(pod) if status.state and status.state.waiting]
    warnings = [event for event in events if event.type == "Warning"]
    if pulls := [each for each in waiting if each.reason in _PULLS]:
        # Between two attempts, only the event tells why the last one failed.
        messages = [event.message for event in warnings if "Failed to pull image" in (event.message or "")]
        return _one_line(f"{pulls[0].reason}: {(messages or [pulls[0].message])[-1]}")
    reasons = [_one_line(f"{each.reason}: {each.message}") for each in (*warnings[-1:], *waiting) if each.message]
    reasons += [each.reason for each in waiting if each.reason]
    return reasons[0] if reasons else "it is not scheduled yet"


def not_started(pod: client.V1Pod, reason: str, timeout_s: float) -> HopsError:
    """Returns the error of a pod that is given up after some seconds, by :func:`why_it_waits`."""
    advice = [advice for pattern, advice in _ADVICE.items() if re.search(pattern, reason)]
    message = f"{full_name(pod)} has not started within {timeout_s:g} s ({reason})"
    if "not found" in reason:
        return BadInput(f"{message}; create it, or correct pod_template_file or pod_override")
    return HopsError("; ".join([message, *advice, "or raise startup_timeout_s in launcher_options"]))


def why_it_ended(
    pod: client.V1Pod,
    node: client.V1Node | None,
    *,
    is_gone: bool,
    last_lines: Callable[[str], str] = lambda container: "",
) -> HopsError | None:
    """Returns the error of a pod that ended without a result; None if only its exit code is informative.

    Args:
        pod: The pod as it was last seen.
        node: Its node; None if unknown.
        is_gone: Whether it was deleted, but not by this worker.
        last_lines: Returns the last lines of the log of a container.
    """
    name, where = full_name(pod), pod.spec.node_name
    state = base_state(pod)
    has_begun = state is not None and (state.running is not None or state.terminated is not None)
    for status in () if has_begun else pod.status.init_container_statuses or ():
        failed = status.state.terminated if status.state else None
        if failed is not None and failed.exit_code:
            return HopsError(
                f"{name}: the init container {status.name!r} ended with exit code {failed.exit_code} "
                f"({failed.reason or 'Error'}), so the step has not begun; correct it in pod_template_file or "
                f"pod_override. Its last lines:\n{last_lines(status.name)}"
            )
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
        failure = MachineLost if pod.status.reason in _NODE_ENDS else HopsError
        return failure(f"{name} was ended by Kubernetes ({pod.status.reason}: {_one_line(pod.status.message)})")
    if not is_gone:
        return None
    if is_unreachable(pod):
        return MachineLost(f"{name} is lost with its node {where}, which no longer answers; a retry uses another node")
    if node is not None and node.spec.unschedulable:
        return MachineLost(f"{name} was evicted because its node {where} is being drained; a retry uses another node")
    return MachineLost(f"{name} was deleted, by a user, a drained node or a preemption, while the step was running")


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


def message_of(error: ApiException) -> str:
    """Returns the message of an answer of the API."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(error.body)["message"])
    return str(error.reason)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
