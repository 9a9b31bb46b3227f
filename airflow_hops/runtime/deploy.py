"""Deploys a model: registers it, publishes its SavedModel, and has the server take it, as champion or as canary.

The order is what makes a killed task harmless: registry, version folder, config, available, record, traffic. A version
takes no traffic before the record says so, and a retry finds each step done and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput, HopsError
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.model_record import ModelRecord, ServedVersion, now, read_record, record_uri, write_record
from airflow_hops.runtime.model_server import ModelServer, check_saved_model
from airflow_hops.runtime.tracking import CHALLENGER, CHAMPION, ModelRegistry, read_training
from airflow_hops.serving_api.config import ConfigError

STABLE_LABEL = "stable"
CANARY_LABEL = "canary"


@dataclass(frozen=True)
class Deployment:
    """What a deployment came to.

    Attributes:
        model_name: Model name.
        version: The deployed version.
        mode: ``champion`` (it has all the traffic) or ``canary``.
        traffic: Version to percent.
        champion: The champion's version.
        serving_path: The version's folder.
        published: Whether the folder was made now; False where it was there already.
        why: In a few words.
    """

    model_name: str
    version: int
    mode: str
    traffic: Mapping[int, int]
    champion: int
    serving_path: str
    published: bool
    why: str


def run(
    context: StepContext, *, model_name: str, canary_percent: int = 20, available_timeout_s: float = 120.0
) -> Artifact:
    """The step: deploys the input ``model``.

    Args:
        context: The step; ``evaluation`` and ``infra_blessing`` among its inputs must be of this model and bless it.
        model_name: Name of the model, in MLflow's registry and on the server.
        canary_percent: Share of the traffic that a model gets where a champion serves already, 1 to 100.
        available_timeout_s: How long the server may take to load the version.
    """
    if not isinstance(canary_percent, int) or not 1 <= canary_percent <= 100:
        raise BadInput(f"canary_percent is {canary_percent!r}; expected a whole number from 1 to 100")
    record_uri(context.store, model_name)
    model = context.input("model")
    for role in ("evaluation", "infra_blessing"):
        if context.has_input(role):
            _check_blessing(context, role, model)
    check_saved_model(context.store.local(model) / "saved_model")
    server = ModelServer.of(context.spec.services, context.store)
    context.progress(0.0, f"model server {server.address}")
    server.check_reachable(model_name)
    try:
        with server.exclusive(model_name):
            deployment = deploy(context, server, model, model_name, canary_percent, available_timeout_s)
    except ConfigError as error:
        raise BadInput(str(error)) from error
    context.progress(1.0, f"version {deployment.version} serves as {deployment.mode} ({deployment.why})")
    facts = {
        "model_name": model_name,
        "version": deployment.version,
        "mode": deployment.mode,
        "champion": deployment.champion,
        "traffic": {str(version): percent for version, percent in deployment.traffic.items()},
    }
    with context.output() as writer:
        document = {
            **facts,
            "serving_path": deployment.serving_path,
            "published": deployment.published,
            "why": deployment.why,
            "at": now(),
        }
        (writer.path / "deployment.json").write_text(json.dumps(document, indent=1) + "\n")
        return writer.commit(
            metrics={"version": deployment.version, "traffic_percent": deployment.traffic.get(deployment.version, 0)},
            properties=facts,
        )


def deploy(
    context: StepContext,
    server: ModelServer,
    model: Artifact,
    model_name: str,
    canary_percent: int,
    available_timeout_s: float,
) -> Deployment:
    """Deploys a model; the caller holds it with :meth:`ModelServer.exclusive`.

    Raises:
        VersionRefused: the server does not load it; config, folder and record are as they were before.
        HopsError: the server does not answer in time; likewise.
    """
    record = read_record(context.store, model_name)
    step = _Steps(context, server, model, model_name, available_timeout_s)
    if record.champion is not None and record.champion.fingerprint == model.fingerprint:
        return step.keep_champion(record)
    registry = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name)
    context.progress(0.1, f"MLflow at {registry.tracking_uri}")
    version = registry.register(
        model,
        context.spec.producer,
        training=read_training(context.store.local(model)),
        evaluation=context.input("evaluation") if context.has_input("evaluation") else None,
    ).version
    if record.champion is None:
        return step.make_champion(record, registry, version)
    return step.make_canary(record, registry, version, canary_percent)


@dataclass(frozen=True)
class _Steps:
    context: StepContext
    server: ModelServer
    model: Artifact
    model_name: str
    available_timeout_s: float

    def keep_champion(self, record: ModelRecord) -> Deployment:
        """The candidate is the champion: makes sure that it serves, and changes nothing else."""
        champion = record.champion
        assert champion is not None
        others = [v for v in self.server.configured(self.model_name) if v != champion.version]
        published = self._load(champion.version, others)
        traffic = self.server.traffic(self.model_name)
        if record.challenger is None and traffic != {champion.version: 100}:
            traffic = {champion.version: 100}
            self._label({STABLE_LABEL: champion.version})
            self.server.set_traffic(self.model_name, traffic)
        return self._deployment(champion.version, "champion", traffic, champion.version, published, "already champion")

    def make_champion(self, record: ModelRecord, registry: ModelRegistry, version: int) -> Deployment:
        """The first model of this name takes all the traffic."""
        published = self._load(version, [])
        traffic = {version: 100}
        self._label({STABLE_LABEL: version})
        registry.set_alias(CHAMPION, version)
        why = "the first model"
        served = self._served(version, 100)
        record = replace(record, champion=served, challenger=None).after("deployed", version, why, traffic=traffic)
        write_record(self.context.store, self.model_name, record)
        self.server.set_traffic(self.model_name, traffic)
        return self._deployment(version, "champion", traffic, version, published, why)

    def make_canary(
        self, record: ModelRecord, registry: ModelRegistry, version: int, canary_percent: int
    ) -> Deployment:
        """The candidate gets a share of the traffic; the champion keeps the rest."""
        champion, challenger = record.champion, record.challenger
        assert champion is not None
        if challenger is not None and challenger.version != version:
            record = self._supersede(record, version)
        if challenger is None or challenger.version != version:
            # Before the version can be loaded: a server without a split sends everything to the newest.
            self.server.set_traffic(self.model_name, {champion.version: 100})
        kept = [v for v in self.server.configured(self.model_name) if v in record.champions()]
        published = self._load(version, [*kept, champion.version])
        traffic = {champion.version: 100 - canary_percent, version: canary_percent}
        why = f"{canary_percent}% of the traffic, beside champion {champion.version}"
        self._label({STABLE_LABEL: champion.version, CANARY_LABEL: version})
        registry.set_alias(CHALLENGER, version)
        if challenger is None or challenger.version != version or challenger.traffic_percent != canary_percent:
            served = replace(self._served(version, canary_percent), baseline=self._baseline())
            record = replace(
                record, challenger=served, champion=replace(champion, traffic_percent=100 - canary_percent)
            ).after("canary", version, why, traffic=traffic)
            write_record(self.context.store, self.model_name, record)
        self.server.set_traffic(self.model_name, traffic)
        return self._deployment(version, "canary", traffic, champion.version, published, why)

    def _supersede(self, record: ModelRecord, version: int) -> ModelRecord:
        """Ends a canary that nobody decided on before the next model came."""
        assert record.challenger is not None and record.champion is not None
        record = replace(record, challenger=None, champion=replace(record.champion, traffic_percent=100)).after(
            "rolled_back", record.challenger.version, f"superseded by version {version} before it was decided on"
        )
        write_record(self.context.store, self.model_name, record)
        return record

    def _load(self, version: int, others: list[int]) -> bool:
        """Publishes a version and has the server load it beside others; undoes both where the server does not."""
        server, name = self.server, self.model_name
        self.context.progress(0.3, f"publishes {server.version_path(name, version)}")
        error_before = server.last_error(name, version)
        saved_model = self.context.store.local(self.model) / "saved_model"
        published = server.publish(saved_model, name, version, self.model.fingerprint)
        previous = server.serve(name, sorted({*others, version}))
        try:
            server.wait_until_available(
                name,
                version,
                self.available_timeout_s,
                error_before=error_before,
                on_state=lambda state: self.context.progress(0.5, f"version {version}: {state}"),
            )
        except HopsError:
            if not self._was_configured(previous, version):
                server.restore(name, previous)
                if published:
                    server.unpublish(name, version)
                server.wait_until_gone(name, version, timeout_s=3.0)
            raise
        return published

    def _was_configured(self, previous: Any, version: int) -> bool:
        return previous is not None and version in previous.model_version_policy.specific.versions

    def _label(self, labels: Mapping[str, int]) -> None:
        # A reload of its own: TensorFlow Serving refuses a label on a version that is not loaded yet.
        if self.server.labels(self.model_name) != labels:
            self.server.serve(self.model_name, self.server.configured(self.model_name), labels)

    def _baseline(self) -> dict[str, Any]:
        """What the server has counted before the canary's first request; empty where it has no REST port."""
        if self.server.rest_port is None:
            return {}
        return {str(version): figures for version, figures in self.server.counts(self.model_name).items()}

    def _served(self, version: int, percent: int) -> ServedVersion:
        path = str(self.server.version_path(self.model_name, version))
        return ServedVersion.of(self.model, version, path, percent)

    def _deployment(
        self, version: int, mode: str, traffic: Mapping[int, int], champion: int, published: bool, why: str
    ) -> Deployment:
        path = str(self.server.version_path(self.model_name, version))
        return Deployment(self.model_name, version, mode, dict(traffic), champion, path, published, why)


def _check_blessing(context: StepContext, role: str, model: Artifact) -> None:
    """Refuses a blessing that is no blessing, or another model's."""
    verdict = context.input(role)
    if not verdict.properties.get("blessed"):
        raise BadInput(f"{role} {verdict.uri}: blessed is {verdict.properties.get('blessed')!r}; expected true")
    judged = [
        artifact
        for artifacts in context.store.manifest(verdict.uri).inputs.values()
        for artifact in artifacts
        if artifact.kind == "model"
    ]
    if judged and model.fingerprint not in {artifact.fingerprint for artifact in judged}:
        raise BadInput(
            f"{role} {verdict.uri}: judges {', '.join(artifact.uri for artifact in judged)}, but the model to deploy "
            f"is {model.uri}; pass the {role} of the same model"
        )
