"""The objects of a step in Kubernetes: its pod, from template and override, its Secret, its ranks and their service."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import create_unique_id
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator, make_safe_label_value
from kubernetes import client

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput

BASE = "base"
"""Name of the container of the step."""

MANAGED_BY = "app.kubernetes.io/managed-by"
INSTALLATION = "airflow-hops/installation"
FINGERPRINT = "airflow-hops/fingerprint"
ENTRY = "airflow-hops/entry"
STEP = "airflow-hops/step"
MORE_RANKS = "airflow-hops/more-ranks"
"""Annotation of a step's pod: the number of ranks above the least, whose pods its follower makes."""
ROLE = "airflow-hops/role"
GANG = "airflow-hops/gang"
PORT = 8476
"""Port of the step's pod that its ranks connect to."""

_MOUNT = "/run/airflow-hops"
_GRACE_S = 10
_MOST_SECRET_BYTES = 1_000_000
_SET_BY_LAUNCHER = ("command", "args")


def read_pod(value: object, source: str) -> client.V1Pod:
    """Returns the pod of a template or override.

    Args:
        value: The pod as a dict, or a ``V1Pod``.
        source: The argument or file, for the error.

    Raises:
        BadInput: it is not a pod, has a field that pods do not have, or sets a field of the launcher.
    """
    if value is None:
        return client.V1Pod()
    if isinstance(value, client.V1Pod):
        pod = copy.deepcopy(value)
    elif isinstance(value, Mapping):
        try:
            pod = PodGenerator.deserialize_model_dict({**value, "spec": _complete(value.get("spec"))})
        except Exception as error:  # whatever the client raises for a wrong type
            raise BadInput(f"{source}: it is not a pod ({type(error).__name__}: {error})") from error
        if unknown := _lost(dict(value), client.ApiClient().sanitize_for_serialization(pod)):
            raise BadInput(f"{source}: pods have no field {unknown!r}; correct its name or its place")
    else:
        raise BadInput(f"{source} is a {type(value).__name__}, expected a pod as a dict or a V1Pod")
    if pod.spec is not None:
        for container in pod.spec.containers[:1]:
            for name in _SET_BY_LAUNCHER:
                if getattr(container, name):
                    raise BadInput(f"{source}: the first container has {name!r}, but the step has its own; remove it")
        if pod.spec.restart_policy not in (None, "Never"):
            raise BadInput(f"{source}: restartPolicy is {pod.spec.restart_policy!r}, expected 'Never': Airflow retries")
    return pod


def read_template(path: str | None) -> client.V1Pod:
    """Returns the pod of a template file.

    Raises:
        BadInput: there is no such file, or it is not a pod.
    """
    if path is None:
        return client.V1Pod()
    try:
        value = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"pod_template_file {path}: {error}") from error
    return read_pod(value, f"pod_template_file {path}")


def merge(*pods: client.V1Pod) -> client.V1Pod:
    """Merges pods as Airflow's executor does: later ones replace values, and add to lists."""
    result = client.V1Pod(spec=client.V1PodSpec(containers=[]), metadata=client.V1ObjectMeta())
    for pod in pods:
        result = PodGenerator.reconcile_pods(result, pod)
    return result


def labels_of(producer: Producer, entry: str, installation: str) -> dict[str, str]:
    """Returns the labels by which a retry finds the pod of its task's step.

    ``STEP`` alone tells steps apart: labels hold a part of the characters and lengths of ids, so that in those for
    people illegal values end with a hash. Another Airflow may have a task of the same ids in the same namespace; its
    pods have another ``installation``.
    """
    step = hashlib.sha256(json.dumps([asdict(replace(producer, try_number=1)), entry], sort_keys=True).encode())
    values = {
        "dag_id": producer.dag_id,
        "run_id": producer.run_id,
        "task_id": producer.task_id,
        "map_index": str(producer.map_index),
        "iteration": str(producer.iteration),
        ENTRY: entry,  # a task may have several steps, such as a plan before an ingest
    }
    # For a value without any legal character, the provider's function returns "-" and a hash.
    legal = {name: make_safe_label_value(value).lstrip("-") for name, value in values.items()}
    return {MANAGED_BY: "airflow-hops", INSTALLATION: installation, STEP: step.hexdigest()[:63], **legal}


def pod_name(producer: Producer) -> str:
    """Returns a new name, legal for pods, services and hosts with any task id."""
    return str(create_unique_id("hops", f"{producer.dag_id}-{producer.task_id}", max_length=60))


def step_pod(
    user: client.V1Pod, *, name: str, namespace: str, python: Path, folder: Path, labels: Mapping[str, str]
) -> client.V1Pod:
    """Returns the pod of a step.

    Args:
        user: Merged template and override.
        name: Name of the pod and of its Secret.
        namespace: Its namespace.
        python: Python of the runtime environment in the image.
        folder: Folder of the spec.
        labels: Labels of the pod.
    """
    spec, container = user.spec, user.spec.containers[0]
    own = client.V1Pod(
        api_version="v1",
        kind="Pod",
        metadata=client.V1ObjectMeta(name=name, namespace=namespace, labels={**labels, ROLE: "step"}),
        spec=client.V1PodSpec(
            restart_policy="Never",
            termination_grace_period_seconds=spec.termination_grace_period_seconds or _GRACE_S,
            automount_service_account_token=bool(spec.automount_service_account_token),
            containers=[
                client.V1Container(
                    name=BASE,
                    image_pull_policy=container.image_pull_policy or "IfNotPresent",
                    command=[str(python), "-P", f"{_MOUNT}/start.py"],
                    volume_mounts=[
                        client.V1VolumeMount(name="hops-order", mount_path=_MOUNT, read_only=True),
                        client.V1VolumeMount(name="hops-step", mount_path=str(folder)),
                    ],
                )
            ],
            volumes=[
                client.V1Volume(name="hops-order", secret=client.V1SecretVolumeSource(secret_name=name)),
                client.V1Volume(name="hops-step", empty_dir=client.V1EmptyDirVolumeSource()),
            ],
        ),
    )
    return merge(user, own)


def step_secret(pod: client.V1Pod, files: Mapping[str, str]) -> client.V1Secret:
    """Returns the Secret with the files of a pod.

    Raises:
        BadInput: they are larger than a Secret can be.
    """
    if (size := sum(len(text.encode()) for text in files.values())) > _MOST_SECRET_BYTES:
        raise BadInput(
            f"the step's parameters, inputs and connections have {size:,} bytes, but a Secret of Kubernetes holds "
            f"{_MOST_SECRET_BYTES:,} at most; pass less in params, or put it into a file beside the DAG file"
        )
    meta = client.V1ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace, labels=pod.metadata.labels)
    return client.V1Secret(metadata=meta, string_data=dict(files))


def owned_by(pod: client.V1Pod) -> list[client.V1OwnerReference]:
    """Returns the reference by which Kubernetes removes an object together with a pod."""
    return [client.V1OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid)]


def rank_service(pod: client.V1Pod) -> client.V1Service:
    """Returns the headless service that resolves the host names of a training's pods."""
    meta = client.V1ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace, labels=pod.metadata.labels)
    spec = client.V1ServiceSpec(
        cluster_ip="None",
        publish_not_ready_addresses=True,
        selector={GANG: pod.metadata.name},
        ports=[client.V1ServicePort(port=PORT)],
    )
    return client.V1Service(metadata=meta, spec=spec)


def ranks_of(gang: str) -> str:
    """Returns the label selector of a gang's pods of ranks."""
    return f"{GANG}={gang},{ROLE}=rank"


def in_gang(pod: client.V1Pod, gang: str, host: str, size: int | None, queue: str | None) -> client.V1Pod:
    """Returns a pod as a member of a gang, which Kueue starts as a whole if there is a queue.

    Args:
        pod: The step's pod, or a rank's.
        gang: Name of the gang, which is also that of its service.
        host: Name of the pod within the service.
        size: Number of pods that start as a whole; None for a pod that starts alone, or not at all.
        queue: Kueue's local queue; None without Kueue.
    """
    labels = {GANG: gang}
    annotations = {}
    if queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = queue
    if queue is not None and size is not None:
        labels["kueue.x-k8s.io/pod-group-name"] = gang
        annotations["kueue.x-k8s.io/pod-group-total-count"] = str(size)
    meta = client.V1ObjectMeta(labels=labels, annotations=annotations)
    return merge(pod, client.V1Pod(metadata=meta, spec=client.V1PodSpec(containers=[], hostname=host, subdomain=gang)))


def rank_pod(pod: client.V1Pod, user: client.V1Pod, rank: int) -> client.V1Pod:
    """Returns the pod of a rank: a copy of the step's, with the rank's own resources."""
    own = client.V1Pod(
        metadata=client.V1ObjectMeta(name=f"{pod.metadata.name}-{rank}", labels={ROLE: "rank"}),
        spec=client.V1PodSpec(
            containers=[
                client.V1Container(name=BASE, env=[client.V1EnvVar(name="HOPS_POD_ROLE", value=f"rank-{rank}")])
            ]
        ),
    )
    return merge(pod, user, own)


def _complete(spec: object) -> object:
    """Returns an override's spec with defaults for the containers and the name of the first one."""
    if not isinstance(spec, Mapping | None):
        return spec
    spec = spec or {}
    containers = list(spec.get("containers") or ())
    if containers and isinstance(containers[0], Mapping):
        containers[0] = {"name": BASE, **containers[0]}
    return {**spec, "containers": containers}


def _lost(value: Any, result: Any, path: str = "") -> str | None:
    """Returns the path of the first value that the client dropped when it read a pod; None if there is none."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if item in (None, {}, []):
                continue
            if not isinstance(result, Mapping) or name not in result:
                return f"{path}.{name}".removeprefix(".")
            if (lost := _lost(item, result[name], f"{path}.{name}")) is not None:
                return lost
    elif isinstance(value, list):
        for number, (item, other) in enumerate(zip(value, result or [], strict=False)):
            if (lost := _lost(item, other, f"{path}[{number}]")) is not None:
                return lost
    return None
