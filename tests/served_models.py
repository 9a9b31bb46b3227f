"""Fixtures of registry, deploy and rollout: a server process, models as artifacts, and the steps."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess
from step_runner import StepRunner
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import BlessingProperties
from airflow_hops.core.evaluation import EvaluationProperties, EvaluationReport, Figures, ModelReference
from airflow_hops.core.models.model_record import read_record
from airflow_hops.runner.launchers.local import LocalLauncher

EPOCHS = [{"loss": 0.7, "val_auc": 0.6}, {"loss": 0.6, "val_auc": 0.7}]


class ConnectedServer(ServerProcess):
    """A model server with what a connection would say of it.

    Args:
        python: The runtime environment's.
        folder: For its files.
        flags: Beside those for its ports, in place of the ones that name config, traffic and capture.
    """

    def __init__(self, python: Path, folder: Path, flags: dict[str, Any] | None = None) -> None:
        super().__init__(python, folder)
        self.config_file, self.traffic_file = folder / "models.config", folder / "traffic.json"
        self.base_path, self.capture_path = folder / "models", folder / "capture"
        self.base_path.mkdir()
        self.config_file.write_text("model_config_list {}\n")
        own = {
            "model_config_file": self.config_file,
            "model_config_file_poll_wait_seconds": 0.1,
            "file_system_poll_wait_seconds": 0.1,
            "traffic_config_file": self.traffic_file,
            "traffic_config_file_poll_wait_seconds": 0.1,
            "capture_base_path": self.capture_path,
            "log_file": folder / "lines.log",
        }
        self.flags = own if flags is None else flags

    @property
    def services(self) -> dict[str, str]:
        return {
            "serving_host": "127.0.0.1",
            "serving_port": str(self.ports["port"]),
            "serving_rest_port": str(self.ports["rest_api_port"]),
            "serving_base_path": str(self.base_path),
            "serving_config_file": str(self.config_file),
            "serving_traffic_file": str(self.traffic_file),
            "serving_capture_path": str(self.capture_path),
        }

    def traffic(self, model_name: str) -> dict[int, float]:
        """The shares in effect."""
        versions = self.get("/v1/stats")["models"].get(model_name, {"versions": {}})["versions"]
        return {int(v): figures["traffic_percent"] for v, figures in versions.items() if figures["traffic_percent"]}

    def ask(self, model_name: str, requests: int, *, far_every: int = 0) -> int:
        """Sends requests; each ``far_every``-th asks for a distance beyond 900. Returns how many failed."""
        failed = 0
        generator = random.Random(requests)
        for number in range(requests):
            far = far_every and number % far_every == 0
            row = {"carrier": "UA", "distance": 1000.0 if far else generator.uniform(100, 899), "scheduled_at": number}
            failed += self.call(f"/v1/models/{model_name}:predict", {"instances": [row]})[0] != 200
        return failed


class Upstream(ConnectedServer):
    """A server that is told by RPC what to serve, and forgets it when it ends, as TensorFlow Serving does."""

    def __init__(self, python: Path, folder: Path) -> None:
        super().__init__(python, folder)
        self.flags = {"model_config_file": self.config_file, "file_system_poll_wait_seconds": 0.1}


class Gateway(ConnectedServer):
    """The bundled server in front of another; the connection names no file but what was captured."""

    def __init__(self, python: Path, folder: Path, upstream: Upstream, scheme: str = "") -> None:
        super().__init__(python, folder)
        self.flags = {
            "upstream": f"{scheme}127.0.0.1:{upstream.ports['port']}",
            "traffic_config_file": self.traffic_file,
            "capture_base_path": self.capture_path,
        }

    @property
    def services(self) -> dict[str, str]:
        return {**super().services, "serving_config_file": "", "serving_traffic_file": ""}


@dataclass
class Processes:
    """The server, the warm process that steps fork from, and the SavedModels."""

    server: ConnectedServer
    launcher: LocalLauncher
    saved_models: Path


@pytest.fixture(scope="session")
def starting_server(runtime_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectedServer]:
    """The server, which starts while the warm process does."""
    server = ConnectedServer(runtime_python, tmp_path_factory.mktemp("model-server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def processes(
    starting_server: ConnectedServer,
    warm_launcher: LocalLauncher,
    runtime: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Processes:
    """Started once for all tests; each test has a model name of its own."""
    saved_models = tmp_path_factory.mktemp("saved-models")
    StepRunner(str(tmp_path_factory.mktemp("store")), runtime)(
        "make_served_models:write",
        params={"folder": str(saved_models)},
        code_paths=(str(Path(__file__).parent),),
        launcher=warm_launcher,
    )
    starting_server.wait_until_ready()
    return Processes(starting_server, warm_launcher, saved_models)


@pytest.fixture(scope="session")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """MLflow's database, made by whoever comes first."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'deeper' / 'mlflow.db'}"


@dataclass
class Pipeline:
    """One model name with a store of its own, on the shared server and MLflow."""

    runner: StepRunner
    server: ConnectedServer
    launcher: LocalLauncher
    saved_models: Path
    tracking_uri: str
    name: str

    @property
    def store(self) -> Any:
        return self.runner.store

    def model(self, kind: str, **properties: Any) -> Artifact:
        """A model artifact as a training writes it; the same kind has the same fingerprint."""
        uri = self.store.uri("training", f"run-{uuid.uuid4().hex[:6]}", "train", "model")
        with self.store.create(uri, "model", Producer("training", "run", "train")) as writer:
            shutil.copytree(self.saved_models / kind, writer.path / ("onnx" if kind == "onnx" else "saved_model"))
            training = {"epochs": EPOCHS, "learning_rate": 0.001, "kind": kind}
            (writer.path / "training.json").write_text(json.dumps(training))
            return writer.commit(
                metrics={"auc": 0.7},
                properties={
                    "features": ["carrier", "distance"],
                    "label": "late",
                    "signature": "serving_default",
                    "statistics": f"{self.store.root}/statistics-of-{kind}",
                    "schema": f"{self.store.root}/schema",
                    "window": ["2013-01-01T00:00:00Z", "2013-04-01T00:00:00Z"],
                    **({"format": "onnx"} if kind == "onnx" else {}),
                    **properties,
                },
            )

    def verdict(self, kind: str, model: Artifact, *, blessed: bool = True) -> Artifact:
        """An evaluation or infra_blessing of a model; the evaluation compares it with the present champion."""
        report: dict[str, Any] = {"blessed": blessed, "uuid": uuid.uuid4().hex}
        properties = BlessingProperties(blessed, () if blessed else ("auc 0.5 is below 0.6",))
        if kind == "evaluation":
            champion = read_record(self.store, self.name).champion
            compared = ModelReference(champion.model.uri, champion.fingerprint, champion.version) if champion else None
            candidate = ModelReference(model.uri, model.fingerprint)
            rule, splits = {"metric": "auc", "uuid": uuid.uuid4().hex}, {"eval": Figures(100, {"auc": 0.71})}
            facts = (blessed, properties.reasons, candidate, compared, self.name, rule)
            report = EvaluationReport(*facts, splits=splits).to_dict()
            properties = EvaluationProperties(*facts[:-1])
        uri = self.store.uri("training", f"run-{uuid.uuid4().hex[:6]}", kind, kind)
        with self.store.create(uri, kind, Producer(), inputs={"model": (model,)}) as writer:
            (writer.path / f"{kind}.json").write_text(json.dumps(report))
            return writer.commit(
                metrics={"auc": 0.71, "accuracy": 0.8},
                properties=properties.to_dict(),
            )

    def deploy(
        self,
        model: Artifact,
        *,
        services: dict[str, str] | None = None,
        killed_before: str = "",
        dag_id: str = "tests",
        **params: Any,
    ) -> Artifact:
        """Runs the deploy step; evaluation and infra_blessing may be among the parameters."""
        roles = {role: params.pop(role) for role in ("evaluation", "infra_blessing") if role in params}
        artifact: Artifact = self.step(
            "airflow_hops.ml.deploy.stage:run",
            killed_before=killed_before,
            params={"model_name": self.name, "canary_percent": 20, "available_timeout_s": 30.0, **params},
            inputs={"model": model, **roles},
            kind="deployment",
            services=services,
            dag_id=dag_id,
            task_id="deploy",
        )
        return artifact

    def rollout(self, deployment: Artifact, *, services: dict[str, str] | None = None, **params: Any) -> Artifact:
        """Looks at the canary until it is decided."""
        # Airflow is imported once its environment is set.
        from airflow_hops.triggers.rollout import RolloutTrigger

        while not isinstance(result := self.poll(deployment, services=services, **params), Artifact):
            waiting = {name: value for name, value in result["waiting"].items() if name != "text"}
            asyncio.run(RolloutTrigger(**waiting, poll_s=0.1).wait())
        return result

    def poll(
        self,
        deployment: Artifact,
        *,
        services: dict[str, str] | None = None,
        killed_before: str = "",
        dag_id: str = "tests",
        **params: Any,
    ) -> Any:
        """Looks at the canary once; ``killed_before`` is one of ``steps/killed_step.py``."""
        plan = {
            "steps": [50, 100],
            "min_requests": 20,
            "bake_time_s": 0.0,
            "timeout_s": 30.0,
            "on_timeout": "roll_back",
            "approval": False,
            "keep_versions": 2,
            "longest_wait_s": 5.0,
        }
        values = {name: params.pop(name) for name in plan.keys() & params.keys()}
        return self.step(
            "airflow_hops.ml.rollout:poll",
            killed_before=killed_before,
            params={"plan": {**plan, **values}, "limits": {}, **params},
            inputs={"deployment": deployment},
            kind="rollout",
            services=services,
            dag_id=dag_id,
            task_id="rollout",
        )

    def decide(
        self,
        function: str,
        *,
        services: dict[str, str] | None = None,
        run_id: str | None = None,
        killed_before: str = "",
        **params: Any,
    ) -> Any:
        """Runs a step of ``ml/deploy/traffic.py``."""
        return self.step(
            f"airflow_hops.ml.deploy.traffic:{function}",
            killed_before=killed_before,
            params={"model_name": self.name, "reason": "a test", **params},
            services=services,
            task_id=function,
            run_id=run_id,
        )

    def step(
        self,
        entry: str,
        *,
        killed_before: str,
        params: dict[str, Any],
        services: dict[str, str] | None = None,
        **given: Any,
    ) -> Any:
        """Runs a step on the server, or the part of it before a point of ``steps/killed_step.py``."""
        return self.runner(
            "killed_step:run" if killed_before else entry,
            params={**params, **({"entry": entry, "before": killed_before} if killed_before else {})},
            code_paths=(str(Path(__file__).parent / "steps"),),
            services={**self.server.services, "tracking_uri": self.tracking_uri, **(services or {})},
            launcher=self.launcher,
            **given,
        )

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        """Has DAGs and commands use its store, its server and MLflow."""
        extra = {**self.server.services, "tracking_uri": self.tracking_uri, "store": self.store.root}
        host, port = extra.pop("serving_host"), int(extra.pop("serving_port"))
        connection = {"conn_type": "hops", "host": host, "port": port, "extra": extra}
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))

    def kill(self, run: Callable[..., Any], *arguments: Any, before: str, **params: Any) -> list[str]:
        """Has a step killed before a point of ``steps/killed_step.py``; returns the points that it passed."""
        # Not above: a plugin of pytest must not import Airflow before its home is set.
        from airflow_hops.core.errors import StepFailed

        with pytest.raises(StepFailed, match="SIGKILL") as caught:
            run(*arguments, killed_before=before, **params)
        assert caught.value.retryable
        return [line.text.removeprefix("does ") for line in self.runner.lines if line.text.startswith("does ")]

    def record(self) -> dict[str, Any]:
        """``<store>/_models/<model>.json``."""
        value: dict[str, Any] = json.loads(self.store.read_text(self.store.internal("_models", f"{self.name}.json")))
        return value

    def events(self) -> list[tuple[str, int]]:
        return [(entry["event"], entry["version"]) for entry in self.record()["history"]]

    def state(self) -> tuple[Any, ...]:
        """All that a decision may change: record, shares, the entry of the server's config, and MLflow's aliases."""
        try:
            record = self.record()
        except FileNotFoundError:
            record = {}
        shares = json.loads(self.server.traffic_file.read_text())["models"].get(self.name)
        return record, shares, str(self.config() or ""), self.aliases()

    def expect(self, *, traffic: dict[int, float] | None = None, loaded: list[int] | None = None, **names: Any) -> None:
        """Expects shares and loaded versions once they are there, and ``aliases``, ``labels`` and ``events`` now."""
        if traffic is not None:
            wait_for(lambda: self.server.traffic(self.name) == traffic, f"the shares {traffic}")
        if loaded is not None:
            wait_for(lambda: self.server.available(self.name) == loaded, f"the versions {loaded}")
        assert {name: getattr(self, name)() for name in names} == names

    def config(self) -> Any:
        """The model's entry in the server's config file, if there is one."""
        from airflow_hops.core.serving_api.config import read_config

        models = read_config(self.server.config_file).model_config_list.config
        return next((model for model in models if model.name == self.name), None)

    def labels(self) -> dict[str, int]:
        """Labels of the model in the server's config file."""
        return dict(self.config().version_labels)

    def aliases(self) -> dict[str, int]:
        """MLflow's aliases of the model."""
        result: dict[str, int] = self.registry("aliases")
        return result

    def registry(self, function: str, **params: Any) -> Any:
        """Asks MLflow, in the runtime environment: ``aliases``, ``set_aliases`` or ``versions``."""
        return self.runner(
            f"ask_mlflow:{function}",
            params={"tracking_uri": self.tracking_uri, "model_name": self.name, **params},
            code_paths=(str(Path(__file__).parent),),
            launcher=self.launcher,
        )


@contextmanager
def new_pipeline(folder: Path, runtime: Path, processes: Processes, tracking_uri: str) -> Iterator[Pipeline]:
    """A model name that no other test uses, and that the server forgets at the end."""
    from airflow_hops.core.serving_api.config import remove_model
    from airflow_hops.core.serving_api.traffic_config import set_traffic

    runner, server = StepRunner(str(folder / "store"), runtime), processes.server
    name = f"flights-{uuid.uuid4().hex[:8]}"
    yield Pipeline(runner, server, processes.launcher, processes.saved_models, tracking_uri, name)
    remove_model(server.config_file, name)
    set_traffic(server.traffic_file, name, None)


@pytest.fixture
def pipeline(tmp_path: Path, runtime: Path, processes: Processes, tracking_uri: str) -> Iterator[Pipeline]:
    """The test's own model name; see :func:`new_pipeline`."""
    with new_pipeline(tmp_path, runtime, processes, tracking_uri) as result:
        yield result
