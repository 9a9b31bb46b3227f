"""Starts steps as pods, through the connection, pod templates and pod manager of Airflow's Kubernetes provider."""

# Pods are found by labels: DAG, run, task, map index, iteration, the step's entry function, and the id of the store, by
# which two Airflows that share a namespace do not touch each other's pods. The label of the fingerprint covers code,
# parameters and inputs.
# So no step as a pod needs Airflow's task state store, which has only what an operator has stored after submitting it:
# pods are also made outside of operators, as by commands, and a worker may die before it has stored anything.
#   same labels, same fingerprint, not failed or being deleted   this try follows the pod
#   same labels otherwise                                        the pod is deleted, and a new one is made
#   other task, ended for longer than ``orphan_timeout``         the pod is deleted: no worker came for its result

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.artifacts.artifact import cache_key
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import reaching_store
from airflow_hops.core.training.rank_places import GANG_VARIABLE, place_of
from airflow_hops.extensions.kubernetes.runner import start
from airflow_hops.extensions.kubernetes.runner.archives import store_code, store_package
from airflow_hops.extensions.kubernetes.runner.in_pod import CHOSEN, MORE, PodOrder
from airflow_hops.runner.connections import find_connection, orphan_timeout_s, similar_connections
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.process import Deferral, StepProcess
from airflow_hops.runner.launchers.warm import WarmStart

if TYPE_CHECKING:
    from kubernetes import client

    from airflow_hops.airflow_internals.triggers import BaseTrigger

log = logging.getLogger(__name__)

DEFAULT_CONN_ID = "kubernetes_default"
_MOST_BEAT_S = 30.0


class KubernetesLauncher(Launcher):
    """Runs a step as a pod.

    The pod outlives the worker: a retry of the same task with the same code, parameters and inputs follows it. It ends
    by itself if no task has followed it for ``[hops] orphan_timeout`` seconds.

    Args:
        runtime: Folder of the runtime environment in the image.
        conn_id: Connection of type ``kubernetes``.
        image: Image with the runtime environment; by default that of the first container in the override or template.
        namespace: Namespace of the pods; by default the connection's, or ``default``.
        pod_template_file: YAML file of a pod on the worker, to which the step is added.
        pod_override: A pod as a dict or ``V1Pod``, which replaces values of the template and adds to its lists.
        rank_pod_override: The same for the pods of ranks, over ``pod_override``.
        queue: Kueue's local queue of a training's pods; they start together or not at all. Of a range of ranks, those
            above the least number start one by one.
        more_ranks_timeout_s: Seconds for which a training on a range of ranks waits for those above the least number.
        startup_timeout_s: Seconds after which a pod that does not start is given up.
        lost_node_timeout_s: Seconds after which a pod on an unresponsive node counts as lost.
        warm: Unused.

    Example:
        >>> from airflow_hops import StatisticsOperator
        >>> StatisticsOperator(task_id="statistics", examples="{{ … }}", launcher_name="kubernetes").launcher_name
        'kubernetes'
    """

    reattaches = True

    def __init__(
        self,
        runtime: Path,
        warm: WarmStart | None = None,
        *,
        conn_id: str = DEFAULT_CONN_ID,
        image: str | None = None,
        namespace: str | None = None,
        pod_template_file: str | None = None,
        pod_override: object = None,
        rank_pod_override: object = None,
        queue: str | None = None,
        more_ranks_timeout_s: float = 120.0,
        startup_timeout_s: float = 600.0,
        lost_node_timeout_s: float = 300.0,
    ) -> None:
        super().__init__(runtime, warm)
        try:
            from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

            from airflow_hops.extensions.kubernetes.runner import manifests
        except ImportError as error:
            raise BadInput(
                f"launcher 'kubernetes' needs {error.name}; install 'airflow-hops[kubernetes]' beside Airflow"
            ) from error
        if find_connection(conn_id, "kubernetes") is None and conn_id != DEFAULT_CONN_ID:
            raise BadInput(
                f"there is no connection {conn_id!r}; add one of type kubernetes, or correct conn_id"
                + similar_connections(conn_id)
            )
        self._hook = KubernetesHook(conn_id=conn_id)
        self._user = manifests.merge(
            manifests.read_template(pod_template_file), manifests.read_pod(pod_override, "pod_override")
        )
        self._rank_user = manifests.read_pod(rank_pod_override, "rank_pod_override")
        if not self._user.spec.containers:
            self._user = manifests.merge(
                self._user, manifests.read_pod({"spec": {"containers": [{"name": "base"}]}}, "")
            )
        container = self._user.spec.containers[0]
        container.image = image or container.image
        if not container.image:
            raise BadInput("there is no image for the step's pod; name one in launcher_options, as {'image': …}")
        self.environment = container.image
        self._namespace, self._queue, self._more_ranks_timeout_s = namespace, queue, more_ranks_timeout_s
        self._pod: client.V1Pod | None = None
        self._timeouts = {"startup_timeout_s": startup_timeout_s, "lost_node_timeout_s": lost_node_timeout_s}

    def follows(self, spec: StepSpec) -> bool:
        """Returns whether an earlier try left a pod that this try can follow; deletes any other."""
        from airflow_hops.extensions.kubernetes.runner.failures import full_name

        store, api = self._connect(spec)
        self._pod = self._find(api, spec, _labels(spec, store))
        if self._pod is not None:
            log.info("An earlier try left %s: this try follows it", full_name(self._pod))
        return self._pod is not None

    def start(self, spec_path: Path, code_paths: Sequence[str], *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Follows the pod of :meth:`follows`, or makes one; see :meth:`.Launcher.start`.

        Raises:
            BadInput: Kubernetes denies or rejects the pod.
            HopsError: the quota is exhausted, or the API or the store cannot be reached.
        """
        from airflow_hops.extensions.kubernetes.runner.failures import full_name

        spec = StepSpec.from_json(spec_path.read_text(), dict(variables))
        store, api = self._connect(spec)
        pod, self._pod = self._pod, None
        if pod is None:
            pod = self._create(api, spec, _labels(spec, store), store, spec_path, code_paths, variables)
            log.info("The step is %s", full_name(pod))
        return self._follow(api, pod, spec, store, spec_path)

    def defer(self, process: StepProcess, deferral: Deferral) -> BaseTrigger:
        """Leaves the pod to a trigger; see :meth:`airflow_hops.runner.launchers.base.Launcher.defer`."""
        from airflow_hops.extensions.kubernetes.runner.process import PodProcess
        from airflow_hops.extensions.kubernetes.runner.trigger import PodTrigger

        assert isinstance(process, PodProcess)
        process.leave()
        pod = {**process.place, "conn_id": self._hook.conn_id, "beat_s": _beat_s(), **self._timeouts}
        return PodTrigger(pod=pod, deferral=asdict(deferral))

    def resume(self, event: Any, spec_path: Path, *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Follows the pod of a deferred task; see :meth:`airflow_hops.runner.launchers.base.Launcher.resume`.

        Raises:
            BadInput: Kubernetes denies to read the pod.
            HopsError: the API or the store cannot be reached.
        """
        from airflow_hops.extensions.kubernetes.runner.failures import read_pod

        spec = StepSpec.from_json(spec_path.read_text(), dict(variables))
        store, api = self._connect(spec)
        if event["problem"] is not None:
            log.warning("The triggerer cannot follow the pod, so this worker does: %s", event["problem"])
        pod = read_pod(api, event["name"], event["namespace"], event["node"])
        return self._follow(api, pod, spec, store, spec_path, event=event)

    def _connect(self, spec: StepSpec) -> tuple[ArtifactStore, client.CoreV1Api]:
        from airflow_hops.extensions.kubernetes.runner.failures import calling_api

        with calling_api("connect to Kubernetes"):
            api = self._hook.core_v1_client
            self._namespace = self._namespace or self._hook.get_namespace() or "default"
        return ArtifactStore(spec.store, storage_options=spec.storage_options), api

    def _follow(
        self,
        api: client.CoreV1Api,
        pod: client.V1Pod,
        spec: StepSpec,
        store: ArtifactStore,
        spec_path: Path,
        event: Mapping[str, Any] | None = None,
    ) -> StepProcess:
        from airflow_hops.extensions.kubernetes.runner.process import PodProcess

        record = _record(spec, store, pod.metadata.name)
        options: dict[str, Any] = {"beat_s": _beat_s(), "event": event, **self._timeouts}
        return PodProcess(api, pod, store, record, spec_path.parent, **options)

    def _find(self, api: client.CoreV1Api, spec: StepSpec, labels: Mapping[str, str]) -> client.V1Pod | None:
        """Returns the pod that an earlier try of the task left, if this try can follow it; deletes the others.

        Pods of other tasks are deleted, too, if they ended long ago and no worker has fetched their results. Pods of
        another Airflow are not touched.
        """
        import pendulum

        from airflow_hops.extensions.kubernetes.runner import manifests
        from airflow_hops.extensions.kubernetes.runner.failures import base_state, calling_api

        fingerprint = _fingerprint(spec)
        with calling_api(f"list pods of the namespace {self._namespace}"):
            common = (manifests.MANAGED_BY, manifests.INSTALLATION)
            selector = ",".join([*(f"{name}={labels[name]}" for name in common), f"{manifests.ROLE}=step"])
            pods = api.list_namespaced_pod(self._namespace, label_selector=selector).items
        result = None
        for pod in pods:
            is_own = labels.items() <= pod.metadata.labels.items()
            state = base_state(pod)
            ended_at = state.terminated.finished_at if state and state.terminated else None
            if is_own and pod.metadata.deletion_timestamp is None and pod.status.phase != "Failed":
                if pod.metadata.labels.get(manifests.FINGERPRINT) == fingerprint:
                    result = pod
                    continue
                log.info(
                    "An earlier try left pod %s of other code, parameters or inputs: it is deleted", pod.metadata.name
                )
            elif not is_own and (ended_at is None or (pendulum.now() - ended_at).total_seconds() < orphan_timeout_s()):
                continue
            with contextlib.suppress(Exception):  # somebody else has deleted it
                api.delete_namespaced_pod(pod.metadata.name, self._namespace)
        return result

    def _create(
        self,
        api: client.CoreV1Api,
        spec: StepSpec,
        labels: Mapping[str, str],
        store: ArtifactStore,
        spec_path: Path,
        code_paths: Sequence[str],
        variables: Mapping[str, str],
    ) -> client.V1Pod:
        """Creates the Secret and the pod of a step, and those of its ranks, if they are pods."""
        from airflow_hops.extensions.kubernetes.runner import manifests
        from airflow_hops.extensions.kubernetes.runner.failures import calling_api

        name = manifests.pod_name(spec.producer)
        namespace = str(self._namespace)
        labels = {
            **labels,
            manifests.FINGERPRINT: _fingerprint(spec),
            "try_number": str(spec.producer.try_number),
        }
        python, folder = self.runtime / "bin" / "python", spec_path.parent
        pod = manifests.step_pod(
            self._user, name=name, namespace=namespace, python=python, folder=folder, labels=labels
        )
        with reaching_store(store.root):
            code, places = store_code(store, code_paths, needed_modules(spec, self.runtime))
            order = PodOrder(
                folder=str(folder),
                archives={"package": store_package(store), "code": code},
                storage_options=dict(store.storage_options),
                store=store.root,
                code_paths=places,
                variables=dict(variables),
                record=_record(spec, store, name),
                beat_s=_beat_s(),
                orphan_timeout_s=orphan_timeout_s(),
                grace_s=pod.spec.termination_grace_period_seconds,
            )
        ranks, more = list[Any](), list[Any]()
        where = json.loads(spec.services.get("ranks") or "null")
        if where is not None and (member := place_of(where).member):
            size = int(where["slots"])
            secret = secrets.token_hex(32)
            host = f"step.{name}.{namespace}.svc"
            least = _least_ranks(spec, size)
            gang = {"host": host, "port": manifests.PORT, "secret": secret}
            if least < size:
                gang |= {"chosen": f"{order.record}/{CHOSEN}", "more_timeout_s": self._more_ranks_timeout_s}
            variables = {**order.variables, GANG_VARIABLE: json.dumps(gang)}
            order = replace(order, gang=gang, member=member, variables=variables)
            ranks = [
                manifests.in_gang(
                    manifests.rank_pod(pod, self._rank_user, rank),
                    name,
                    f"rank-{rank}",
                    least + 1 if rank < least else None,
                    self._queue,
                )
                for rank in range(size)
            ]
            ranks, more = ranks[:least], ranks[least:]
            pod = manifests.in_gang(pod, name, "step", least + 1, self._queue)
            if more:
                pod.metadata.annotations = {**(pod.metadata.annotations or {}), manifests.MORE_RANKS: str(len(more))}
        program = Path(start.__file__).read_text()
        order_files = {"start.py": program, "pod.json": json.dumps(asdict(order)), "spec.json": spec_path.read_text()}
        secret_object = manifests.step_secret(pod, order_files)
        with calling_api(f"create the Secret {namespace}/{name}"):
            api.create_namespaced_secret(namespace, secret_object)
        try:
            with calling_api(f"create the pod {namespace}/{name}"):
                created = api.create_namespaced_pod(namespace, pod)
        except BaseException:
            with contextlib.suppress(Exception):
                api.delete_namespaced_secret(name, namespace)
            raise
        owner = manifests.owned_by(created)
        try:
            with calling_api(f"create what belongs to the pod {namespace}/{name}"):
                api.patch_namespaced_secret(name, namespace, {"metadata": {"ownerReferences": owner}})
                if ranks:
                    service = manifests.rank_service(pod)
                    service.metadata.owner_references = owner
                    api.create_namespaced_service(namespace, service)
                for rank in ranks:
                    rank.metadata.owner_references = owner
                    api.create_namespaced_pod(namespace, rank)
            if more:
                for rank in more:
                    rank.metadata.owner_references = owner
                pods = api.api_client.sanitize_for_serialization(more)
                store.write_text(f"{order.record}/{MORE}", json.dumps(pods))
        except BaseException:
            with contextlib.suppress(Exception):
                api.delete_namespaced_pod(name, namespace)
            raise
        return created


def needed_modules(spec: StepSpec, runtime: Path) -> set[Path] | None:
    """Returns the files of user code that a step needs; None if that cannot be determined."""
    from airflow_hops.runner.user_code.files import UserFiles
    from airflow_hops.runner.user_code.libraries import Libraries

    code = UserFiles(spec, Libraries(runtime))
    return None if code.unknown else {Path(str(file)) for file in code.files.values()}


def _beat_s() -> float:
    return min(_MOST_BEAT_S, orphan_timeout_s() / 4)


def _record(spec: StepSpec, store: ArtifactStore, name: str) -> str:
    producer = spec.producer
    return store.internal("_state", "pods", producer.dag_id, producer.run_id, producer.task, name)


def _labels(spec: StepSpec, store: ArtifactStore) -> dict[str, str]:
    from airflow_hops.extensions.kubernetes.runner import manifests

    with reaching_store(store.root):
        return manifests.labels_of(spec.producer, spec.entry, _installation(store))


def _installation(store: ArtifactStore) -> str:
    """Returns the id of the store, which distinguishes the pods of Airflow installations with different stores."""
    uri = store.internal("_state", "installation")
    with contextlib.suppress(FileNotFoundError):
        return store.read_text(uri)
    with contextlib.suppress(FileExistsError):  # another step of this store was faster
        store.create_text(uri, uuid.uuid4().hex)
    return store.read_text(uri)


def _fingerprint(spec: StepSpec) -> str:
    """Returns the label of the step's identity: a retry follows only a pod with the same."""
    text = f"{spec.store}\n{spec.entry}\n{cache_key(spec.cache_key_parts)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _least_ranks(spec: StepSpec, most: int) -> int:
    """Returns the number of ranks that a training needs at least."""
    np = spec.params.get("np")
    return min(int(np[0]), most) if isinstance(np, list | tuple) else most
