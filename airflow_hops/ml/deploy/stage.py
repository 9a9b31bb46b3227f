"""Deploys a model as champion or canary: registers it, publishes its files and has the server load it.

The order makes a killed task harmless: registry, version folder, config, available, record, labels, traffic,
aliases. A version gets no traffic before the record says so, and a retry skips the steps that are done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import BlessingProperties, DeploymentProperties, Mode
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import EvaluationProperties
from airflow_hops.core.models.model_record import (
    ModelRecord,
    ServedVersion,
    by_whom,
    read_record,
    record_uri,
    write_record,
)
from airflow_hops.core.rollout.counts import snapshot_of
from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.core.times import now
from airflow_hops.ml.deploy.lookups import (
    check_looked_up,
    check_published,
    keys_of,
    lookup_of,
    published_lookup,
    with_lookup_file,
)
from airflow_hops.ml.model_server import ModelServer, check_model
from airflow_hops.ml.model_server.request_inputs import check_inputs, request_inputs
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.models.mlflow_model import write_mlflow_model
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import ModelRegistry, read_training, record_version
from airflow_hops.serving.models.lookups import LookupFile

# What a kill leaves behind, in the order of the steps, all under ModelServer.exclusive():
# - after the registry: a version in MLflow without traffic; a retry gets the same number by the model's fingerprint.
# - after the version folder: files that nobody serves; a retry finds them by their marker.
# - after the config: the server loads a version that gets no traffic, since the shares were set before it.
# - after the record: the record says what should serve; a retry or the next rollout poll sets labels and shares.
# - after labels and traffic: only MLflow's aliases are old.
# An error (unlike a kill) before the record undoes config and folder, if this task has created them.

STABLE_LABEL = "stable"
CANARY_LABEL = "canary"


Outcome = tuple[DeploymentProperties, dict[str, Any]]
"""Properties of the artifact, and the other facts of ``deployment.json``."""


def run(
    context: StepContext,
    *,
    model_name: str,
    canary_percent: int = 20,
    available_timeout_s: float = 120.0,
    allow_older: bool = False,
    allow_rolled_back: bool = False,
    lookup_options: Mapping[str, object] | None = None,
    ungated: str | None = None,
) -> Artifact:
    """Deploys the input ``model``.

    Parameters are those of ``DeployModelOperator``. The inputs ``evaluation`` and ``infra_blessing`` are optional; if
    present, they must bless this model, the evaluation also under this name and against this champion. So is
    ``lookup``, the description of the inputs that the server looks up.
    """
    record_uri(context.store, model_name)
    model = context.input("model")
    for role in ("evaluation", "infra_blessing"):
        if context.has_input(role):
            _check_blessed(context, role, model, model_name)
    lookup = lookup_of(context, model, lookup_options or {})
    server = ModelServer.of(context.spec.services, context.store)
    check_model(model_folder(context.store, model), served_by=server.at.kind)
    context.progress(0.0, f"model server {server.at}")
    server.status(model_name)  # raises if the server does not answer
    try:
        with server.exclusive(model_name):
            deployment, details = _deploy(
                _Steps(context, server, model, model_name, available_timeout_s, lookup),
                canary_percent,
                allow_older=allow_older,
                allow_rolled_back=allow_rolled_back,
            )
    except ConfigError as error:
        raise BadInput(str(error)) from error
    context.progress(1.0, f"version {deployment.version} serves as {deployment.mode} ({details['why']})")
    facts, version = deployment.to_dict(), deployment.version
    assert version is not None
    with context.output() as writer:
        document = {**facts, **details, **({"ungated": ungated} if ungated else {}), "at": now()}
        (writer.path / "deployment.json").write_text(json.dumps(document, indent=1) + "\n")
        return writer.commit(
            metrics={"version": version, "traffic_percent": deployment.traffic.get(str(version), 0)}, properties=facts
        )


def _check_blessed(context: StepContext, role: str, model: Artifact, model_name: str) -> None:
    """Raises BadInput unless an evaluation or infra-validation blesses this model, the evaluation under this name."""
    verdict = context.input(role)
    manifest = context.store.manifest(verdict.uri)
    if manifest.kind != role:
        raise BadInput(f"{role} {verdict.uri} is an artifact of kind {manifest.kind!r}; expected {role!r}")
    if not BlessingProperties.of(manifest).blessed:
        raise BadInput(f"{role} {verdict.uri}: blessed is {manifest.properties.get('blessed')!r}; expected true")
    judged = manifest.inputs.get("model", ())
    if model.fingerprint not in {artifact.fingerprint for artifact in judged}:
        raise BadInput(
            f"{role} {verdict.uri}: judges {', '.join(artifact.uri for artifact in judged) or 'no model'}, but the "
            f"model to deploy is {model.uri}; pass the {role} of the same model"
        )
    if role == "evaluation" and (name := EvaluationProperties.of(manifest).model_name) != model_name:
        raise BadInput(
            f"evaluation {verdict.uri}: blesses the model as {name!r}, but it is to be deployed as {model_name!r}, "
            "whose champion it was not compared with; give EvaluateOperator and DeployModelOperator the same model_name"
        )


def _check_compared(context: StepContext, champion: ServedVersion | None, model_name: str) -> None:
    """Raises BadInput if the champion is not the one that the evaluation compared the model with."""
    if not context.has_input("evaluation"):
        return
    uri = context.input("evaluation").uri
    compared = EvaluationProperties.of(context.store.manifest(uri)).champion
    if (compared and compared.fingerprint) != (champion and champion.fingerprint):
        rival = f"champion {compared.version or compared.uri}" if compared else "no champion"
        present = f"version {champion.version} is the champion" if champion else "there is no champion"
        raise BadInput(
            f"evaluation {uri}: compared the model with {rival}, but now {present} of model {model_name!r}; clear the "
            "evaluation's task and those after it"
        )


def _deploy(step: _Steps, canary_percent: int, *, allow_older: bool, allow_rolled_back: bool) -> Outcome:
    """Deploys a model; the caller holds :meth:`ModelServer.exclusive`.

    Raises:
        BadInput: the model belongs to another DAG; the model was compared with another champion, is older than the
            champion, was rolled back, does not accept the champion's requests, or the server cannot give it the share;
            or the server does not load it.
        HopsError: the server does not answer in time. If loading fails or times out, config, folder and record are
            unchanged.
    """
    context, server, model, model_name = step.context, step.server, step.model, step.model_name
    record = read_record(context.store, model_name)
    champion = record.champion
    record.check_owner(model_name, context.spec.producer.dag_id)
    registry = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name)
    if champion is not None and champion.fingerprint == model.fingerprint:
        deployment = step.keep_champion(record)
    else:
        _check_compared(context, champion, model_name)
        if champion is not None and canary_percent < 100:
            # Refuses a canary on a server that cannot give it a share
            if not server.splits_traffic:
                raise BadInput(
                    f"model {model_name!r}: canary_percent is {canary_percent}, but {server.at} is a "
                    "tensorflow_model_server, which does not split traffic. Put the bundled server in front of it "
                    f"(airflow hops serve -- --upstream={server.at}) and name that one in the connection; or "
                    "give canary_percent=100"
                )
            champion_keys = keys_of(published_lookup(server, model_name, champion.version))
            check_inputs(context, champion, model, model_name, champion_keys, keys_of(step.lookup))
        context.progress(0.1, f"MLflow at {registry.tracking_uri}")
        training = read_training(context.store.local(model))
        evaluation = context.input("evaluation") if context.has_input("evaluation") else None
        version = registry.register(
            model, context.spec.producer, training=training, evaluation=evaluation, describe=step.describe_for_mlflow
        )
        record_version(context.store, model, model_name, version, training, evaluation)
        if champion is not None and version < champion.version and not allow_older:
            # Otherwise clearing a task of an old run would deploy it.
            raise BadInput(
                f"model {model_name!r}: {model.uri} was registered as version {version}, before the champion "
                f"{champion.version}; to go back to it, use RollbackModelOperator, or deploy it with allow_older=True"
            )
        # An older version is only reached with allow_older, so it is intended.
        is_older = champion is not None and version < champion.version
        forced = check_not_rolled_back(record, version, model, model_name, allow_rolled_back or is_older)
        if forced:
            context.progress(0.2, f"version {version}{forced}")
        if champion is None:
            deployment = step.make_champion(record, version, forced)
        else:
            deployment = step.make_canary(record, version, canary_percent, forced)
    record = read_record(context.store, model_name)
    registry.point_aliases(
        record.champion.version if record.champion else None, record.challenger.version if record.challenger else None
    )
    return deployment


@dataclass(frozen=True)
class _Steps:
    context: StepContext
    server: ModelServer
    model: Artifact
    model_name: str
    available_timeout_s: float
    lookup: LookupFile | None

    def describe_for_mlflow(self, folder: Path) -> None:
        """Writes the description with which MLflow loads the version from the store."""
        store, model = self.context.store, self.model
        inputs = request_inputs(model_folder(store, model)) or {}
        write_mlflow_model(folder, store, model, {name: (each.dtype, each.shape) for name, each in inputs.items()})

    def keep_champion(self, record: ModelRecord) -> Outcome:
        """Ensures that the candidate serves if it already is the champion; changes nothing else."""
        champion = record.champion
        assert champion is not None
        others = [v for v in self.server.configured(self.model_name) if v != champion.version]
        published = self._load(champion.version, others)
        traffic = self.server.shares.read(self.model_name)
        if record.challenger is None:
            self.server.set_labels(self.model_name, {STABLE_LABEL: champion.version})
            if traffic != record.traffic:
                traffic = record.traffic
                self.server.set_traffic(self.model_name, traffic)
        return self._deployment(champion.version, "champion", traffic, champion.version, published, "already champion")

    def make_champion(self, record: ModelRecord, version: int, forced: str) -> Outcome:
        """Gives all traffic to the first model of this name."""
        published = self._load(version, [])
        traffic = {version: 100}
        why = f"the first model{forced}"
        served = self._served(version, 100)
        record = replace(record, champion=served, challenger=None)
        facts = {"traffic": traffic, "by": self._by, "fingerprint": self.model.fingerprint, "model": self.model.uri}
        self._write(record.after("deployed", version, why, **facts))
        self.server.set_labels(self.model_name, {STABLE_LABEL: version})
        self.server.set_traffic(self.model_name, traffic)
        return self._deployment(version, "champion", traffic, version, published, why)

    def make_canary(self, record: ModelRecord, version: int, canary_percent: int, forced: str) -> Outcome:
        """Gives the candidate a share of the traffic, and the champion the rest."""
        champion, challenger = record.champion, record.challenger
        assert champion is not None
        is_new = challenger is None or challenger.version != version
        if challenger is not None and challenger.rollout is not None and not is_new:
            canary_percent = challenger.traffic_percent  # its rollout has begun
        if is_new and self.server.splits_traffic:
            # Before the version is loaded: a server without shares sends all requests to the newest.
            self.server.set_traffic(self.model_name, record.traffic)
        folders = self.server.folders
        if not folders.has(self.model_name, champion.version):  # another server has it, as of an adopted model
            folder = model_folder(self.context.store, champion.model)
            self.server.publish(folder, self.model_name, champion.version, champion.fingerprint)
        # A previous canary stays until this version can replace it.
        published = self._load(version, [*self.server.configured(self.model_name), champion.version])
        traffic = {champion.version: 100 - canary_percent, version: canary_percent}
        why = f"{canary_percent}% of the traffic, beside champion {champion.version}{forced}"
        if challenger is None or is_new or challenger.traffic_percent != canary_percent:
            served = replace(self._served(version, canary_percent), baseline=self._baseline())
            if challenger is not None and is_new:
                superseded = f"superseded by version {version} before it was decided on"
                record = record.after("rolled_back", challenger.version, superseded, by=self._by)
            record = replace(
                record, challenger=served, champion=replace(champion, traffic_percent=100 - canary_percent)
            )
            facts = {"fingerprint": self.model.fingerprint, "model": self.model.uri}
            self._write(record.after("canary", version, why, traffic=traffic, by=self._by, **facts))
        labels = {STABLE_LABEL: champion.version, CANARY_LABEL: version}
        self.server.set_labels(self.model_name, labels)
        if self.server.splits_traffic:
            self.server.set_traffic(self.model_name, traffic)
        wanted = sorted({v for v in self.server.configured(self.model_name) if v in (version, *record.champions())})
        if self.server.configured(self.model_name) != wanted:
            self.server.serve(self.model_name, wanted, labels)
        if not self.server.splits_traffic:
            self.server.set_traffic(self.model_name, traffic)
        return self._deployment(version, "canary", traffic, champion.version, published, why)

    @property
    def _by(self) -> dict[str, Any]:
        return by_whom(self.context.spec.producer)

    def _write(self, record: ModelRecord) -> None:
        owned = replace(record, owners=record.owners or (self.context.spec.producer.dag_id,))
        write_record(self.context.store, self.model_name, owned)

    def _load(self, version: int, others: list[int]) -> bool:
        server, model_name, lookup = self.server, self.model_name, self.lookup

        def publish() -> bool:
            folder = model_folder(self.context.store, self.model)
            if lookup is not None:
                folder = with_lookup_file(self.context, folder, lookup)
            published = server.publish(folder, model_name, version, self.model.fingerprint)
            if not published:
                check_published(server, model_name, version, lookup)
            return published

        def check() -> None:
            if lookup is not None:
                check_looked_up(server, model_name, version, keys_of(lookup))

        return load_version(
            self.context,
            server,
            model_name,
            version,
            others,
            publish=publish,
            check=check,
            timeout_s=self.available_timeout_s,
        )

    def _baseline(self) -> dict[str, Any]:
        """Returns the server's counts before the canary's first request; empty if it has no REST port."""
        if self.server.at.rest_port is None:
            return {}
        return {str(version): snapshot_of(figures) for version, figures in self.server.counts(self.model_name).items()}

    def _served(self, version: int, percent: int) -> ServedVersion:
        path = self.server.folders.uri(self.model_name, version)
        return ServedVersion.of(self.model, version, path, percent)

    def _deployment(
        self, version: int, mode: Mode, traffic: Mapping[int, int], champion: int, published: bool, why: str
    ) -> Outcome:
        shares = {str(number): percent for number, percent in traffic.items()}
        path = self.server.folders.uri(self.model_name, version)
        # ``published`` is False if the folder existed already.
        details = {"serving_path": path, "published": published, "why": why}
        return DeploymentProperties(self.model_name, version, mode, champion, shares), details


def load_version(
    context: StepContext,
    server: ModelServer,
    model_name: str,
    version: int,
    others: list[int],
    *,
    publish: Callable[[], bool],
    check: Callable[[], None] = lambda: None,
    timeout_s: float,
) -> bool:
    """Publishes a version and has the server load it beside others; undoes both if the server fails to.

    ``publish`` creates the version's folder and returns False if it existed, as does this function. ``check`` raises an
    error if the loaded version may not get requests.

    Raises:
        BadInput: the server does not load the version.
        HopsError: the version is not available in time.
    """
    context.progress(0.3, f"publishes {server.folders.uri(model_name, version)}")
    published = publish()
    try:
        previous = server.serve(model_name, sorted({*others, version}))
    except Exception:
        if published:
            server.folders.unpublish(model_name, version)
        raise
    try:
        server.wait_until_available(
            model_name, version, timeout_s, on_state=lambda state: context.progress(0.5, f"version {version}: {state}")
        )
        check()
    except Exception:
        if previous is None or version not in previous.model_version_policy.specific.versions:
            server.restore(model_name, previous)
            if published:
                server.folders.unpublish(model_name, version)
            server.wait_until_gone(model_name, version, timeout_s=3.0)
        raise
    return published


def check_not_rolled_back(
    record: ModelRecord, version: int, model: Artifact, model_name: str, allow_rolled_back: bool
) -> str:
    """Refuses a model that was rolled back: a cached training would bring it back with every run.

    Returns:
        Note about the rollback if it is allowed anyway; empty if the model was not rolled back.
    """
    challenger = record.challenger
    rollback = record.rollback_of(version, model.fingerprint)
    if rollback is None or (challenger is not None and challenger.fingerprint == model.fingerprint):
        return ""
    what = f"rolled back on {rollback.at} ({rollback.why})"
    if not allow_rolled_back:
        same = f", and is version {rollback.version}, which was" if version != rollback.version else ", and was"
        raise BadInput(
            f"model {model_name!r}: {model.uri} is registered as version {version}{same} {what}; train with other "
            "data, code or parameters, or deploy it again with allow_rolled_back=True"
        )
    return f"; allowed although it was {what}"
