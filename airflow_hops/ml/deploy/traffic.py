"""Applies decisions of users about a model: shares, promotion, rollback, undeployment, owners.

A decision is written to the model's record, then applied: versions, traffic, labels, aliases. Each of these is
idempotent, so the retry of a killed task, or the next task, finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError, InvalidArgument, ModelNotFound
from airflow_hops.core.models.model_record import (
    ModelRecord,
    ServedVersion,
    by_whom,
    deployed_model,
    read_record,
    record_uri,
    write_record,
)
from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.core.serving_api.traffic_config import check_split
from airflow_hops.core.times import now
from airflow_hops.ml.deploy.lookups import published_lookup
from airflow_hops.ml.deploy.stage import CANARY_LABEL, STABLE_LABEL, check_not_rolled_back, load_version
from airflow_hops.ml.model_server import ModelServer, check_model
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import ModelRegistry, read_training, record_version

# Order of a decision, under ModelServer.exclusive(): check it, load the version if needed, write the record, apply.
# Before the record is written, nothing that gets traffic has changed; after it, apply() is repeated by whoever comes
# next. A retry recognizes its own decision in the record's history (_decided_before) and only applies it.
# apply() sets the shares before it unloads versions, so that no version is unloaded while it gets requests. A server
# that does not split traffic sends all requests to its newest version; there, the versions come first.


def set_traffic(context: StepContext, *, percents: Mapping[str, int], **given: Any) -> dict[str, Any]:
    """Sets the shares of champion and challenger.

    Args:
        context: The step.
        percents: Version to percent, whole numbers that sum to 100.
        given: ``model_name``, ``reason`` and ``by`` of :class:`Serving`. ``by`` is set if a person decides: ``user``,
            ``request_id`` and, on a page, its ``dag_id``. Repeating a request, or a task, changes nothing.

    Returns:
        As :meth:`Serving.outcome`.
    """
    return _decide(context, lambda serving: serving.set_traffic(_as_split(percents)), **given)


def promote(
    context: StepContext, *, version: int | None, allow_rolled_back: bool = False, **given: Any
) -> dict[str, Any]:
    """Gives all traffic to a version (None: the challenger). ``given`` are fields of :class:`Serving`."""
    return _decide(context, lambda serving: serving.promote(version, allow_rolled_back), **given)


def replace_champion(context: StepContext, *, model: str, **given: Any) -> dict[str, Any]:
    """Makes the model artifact at a URI the champion, without a comparison."""
    return _decide(context, lambda serving: serving.replace_champion(model), **given)


def roll_back(context: StepContext, *, to_version: int | None, **given: Any) -> dict[str, Any]:
    """Returns to a version; None removes the canary or, without a canary, undoes the last promotion.

    With ``if_away``, a server that does not answer, and starts from files, serves as decided once it is back.
    """
    return _decide(context, lambda serving: serving.roll_back(to_version), **given)


def undeploy(context: StepContext, *, version: int | None, force: bool, **given: Any) -> dict[str, Any]:
    """Unloads a version or the whole model; ``force`` is required if it serves."""
    return _decide(context, lambda serving: serving.undeploy(version, force), **given)


def set_owners(context: StepContext, *, owners: Sequence[str], **given: Any) -> dict[str, Any]:
    """Names the DAGs that may deploy the model and decide on it, and no others may."""
    return _decide(context, lambda serving: serving.set_owners(owners), needs_server=False, **given)


def _decide(
    context: StepContext,
    decision: Callable[[Serving], bool],
    *,
    model_name: str,
    by: Mapping[str, object] | None = None,
    keep_versions: int = 2,
    needs_server: bool = True,
    if_away: bool = False,
    **given: Any,
) -> dict[str, Any]:
    record_uri(context.store, model_name)
    server = ModelServer.of(context.spec.services, context.store)
    registry = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name)
    away = False
    try:
        if needs_server:
            server.status(model_name)
    except HopsError as error:
        away = if_away and server.starts_from_files and not isinstance(error, BadInput)
        if not away:
            raise
    by = by or by_whom(context.spec.producer)
    serving = Serving(context, server, registry, model_name, by=by, keep_versions=keep_versions, away=away, **given)
    try:
        with server.exclusive(model_name):
            changed = decision(serving)
            if away:
                serving.apply_to_files()
            elif needs_server:
                serving.apply()
            return serving.outcome(changed)
    except ConfigError as error:
        raise BadInput(str(error)) from error


@dataclass(frozen=True)
class Serving:
    """Decisions on a served model; the caller holds :meth:`ModelServer.exclusive`.

    Each decision is written to the record, which :meth:`apply` then applies to the server. It returns True if it
    changed the record, False if the decision was recorded before.

    Attributes:
        registry: MLflow's registry of the model.
        reason: Reason, for the record.
        by: The deciding task or person, for the record.
        keep_versions: Versions that stay loaded, including the champion.
        available_timeout_s: Time limit for loading a version.
        away: Whether the server does not answer: nothing is loaded then, and it finds the decision in its files.
    """

    context: StepContext
    server: ModelServer
    registry: ModelRegistry
    model_name: str
    reason: str
    by: Mapping[str, Any]
    keep_versions: int = 2
    available_timeout_s: float = 120.0
    away: bool = False

    def set_traffic(self, percents: Mapping[int, int]) -> bool:
        """Sets the shares of champion and challenger.

        Raises:
            BadInput: the percents name another version, or the server cannot split traffic.
        """
        record, champion = self._deployed()
        challenger = record.challenger
        if self._decided_before(record, "traffic", traffic=dict(percents)):
            return False
        serving = {champion.version, *([challenger.version] if challenger else [])}
        if not set(percents) <= serving:
            raise BadInput(
                f"model {self.model_name!r}: percents name version "
                f"{', '.join(str(version) for version in sorted(set(percents) - serving))}; only these can get "
                f"traffic: {' and '.join(f'version {version}' for version in sorted(serving))} (champion and "
                "challenger); deploy or promote the other first"
            )
        if not self.server.splits_traffic:
            self.server.set_traffic(self.model_name, percents)  # raises before the record is written
        changed = record.traffic != percents
        if changed:
            champion = replace(champion, traffic_percent=percents.get(champion.version, 0))
            if challenger is not None:
                challenger = replace(challenger, traffic_percent=percents.get(challenger.version, 0))
            version = (challenger or champion).version
            self._write(
                replace(record, champion=champion, challenger=challenger), "traffic", version, traffic=dict(percents)
            )
        return changed

    def promote(self, version: int | None, allow_rolled_back: bool = False) -> bool:
        """Gives a version all the traffic.

        Raises:
            BadInput: the challenger or the version does not exist; its model was rolled back under another number, and
                ``allow_rolled_back`` is False; or the server does not load it.
        """
        record, champion = self._deployed()
        asked_for = {} if version is None else {"version": version}
        if self._decided_before(record, "promoted", **asked_for):
            return False
        if version is None:
            if record.challenger is None:
                raise ModelNotFound(self.model_name, "challenger").with_text(
                    f"model {self.model_name!r} has no challenger to promote; name a version"
                )
            version = record.challenger.version
        if version == champion.version:
            return False
        model, _ = deployed_model(self.context.store, self.model_name, version)
        rollback = record.rollback_of(version, model.fingerprint)
        # Naming the rolled-back version is explicit; with another number the user may not know of the rollback.
        is_named = rollback is not None and rollback.version == version
        forced = check_not_rolled_back(record, version, model, self.model_name, allow_rolled_back or is_named)
        replace(self, reason=self.reason + forced)._take_over(record, version, model, "promoted")
        return True

    def replace_champion(self, uri: str) -> bool:
        """Gives all traffic to a model, even if it was refused or has other inputs than the champion.

        Raises:
            BadInput: the artifact is not a model, or the server cannot serve or does not load it.
        """
        record, champion = self._deployed()
        store = self.context.store
        manifest = store.manifest(uri)
        model = manifest.reference(uri)
        if model.kind != "model":
            raise BadInput(f"{uri} is an artifact of kind {model.kind!r}; expected a 'model', the output of a training")
        if champion.fingerprint == model.fingerprint:
            return False
        if self._decided_before(record, "promoted", fingerprint=model.fingerprint):
            return False
        check_model(model_folder(store, model), served_by=self.server.at.kind)
        training = read_training(store.local(model))
        # The producer is the task that trained it: MLflow has its run in that DAG's experiment.
        version = self.registry.register(model, manifest.producer, training=training)
        record_version(store, model, self.model_name, version, training)
        why = f"replaces version {champion.version} on purpose, without a comparison: {self.reason}"
        replace(self, reason=why)._take_over(record, version, model, "promoted")
        return True

    def roll_back(self, to_version: int | None) -> bool:
        """Removes the canary, or makes a former champion the champion again.

        Raises:
            BadInput: the former champion or the version does not exist, or the server does not load it.
        """
        record, champion = self._deployed()
        asked_for = {} if to_version is None else {"to": to_version}
        if self._decided_before(record, "rolled_back", **asked_for):
            return False
        challenger = record.challenger
        if to_version == champion.version or (to_version is None and challenger is not None):
            if challenger is None:
                return False
            record = replace(record, champion=replace(champion, traffic_percent=100), challenger=None)
            self._write(
                record,
                "rolled_back",
                challenger.version,
                to=champion.version,
                traffic={champion.version: 100},
                fingerprint=challenger.fingerprint,
            )
            return True
        if to_version is None:
            to_version = next((version for version in record.champions() if version != champion.version), None)
            if to_version is None:
                raise BadInput(f"model {self.model_name!r} has no champion before version {champion.version}")
        model, _ = deployed_model(self.context.store, self.model_name, to_version)
        self._take_over(record, to_version, model, "rolled_back")
        return True

    def undeploy(self, version: int | None, force: bool) -> bool:
        """Unloads a version, or the whole model if the version is None or the champion.

        Raises:
            BadInput: the version serves and ``force`` is False, a canary is undecided, or the model was never deployed.
        """
        record = read_record(self.context.store, self.model_name)
        if record.champion is None and record.history:
            return False
        record, champion = self._deployed()
        challenger = record.challenger
        asked_for: dict[str, Any] = {"traffic": {}} if version is None else {"version": version}
        if self._decided_before(record, "undeployed", **asked_for):
            return False
        if version is None or version == champion.version:
            if not force:
                raise BadInput(
                    f"model {self.model_name!r}: version {champion.version} is the champion, and serves; to undeploy "
                    "it anyway, give force=True"
                )
            if version is not None and challenger is not None:
                raise BadInput(
                    f"model {self.model_name!r}: version {version} is the champion, and challenger "
                    f"{challenger.version} is undecided; promote or roll it back first, or undeploy the whole model "
                    "(version=None)"
                )
            record = replace(record, champion=None, challenger=None)
            self._write(record, "undeployed", champion.version, traffic={})
            return True
        if challenger is not None and challenger.version == version:
            record = replace(record, champion=replace(champion, traffic_percent=100), challenger=None)
            self._write(record, "undeployed", version, traffic={champion.version: 100})
            return True
        loaded = version in self.server.configured(self.model_name)
        if loaded:
            self._write(record, "undeployed", version)
        return loaded

    def set_owners(self, owners: Sequence[str]) -> bool:
        """Names the owners of the model.

        Raises:
            BadInput: there are none, or the model was never deployed.
        """
        record = read_record(self.context.store, self.model_name)
        if not owners:
            raise BadInput(f"model {self.model_name!r}: owners are empty; name at least one DAG")
        if not record.history:
            raise ModelNotFound(self.model_name).with_text(
                f"model {self.model_name!r} was never deployed; the DAG that deploys it will own it"
            )
        named = tuple(owners)
        changed = record.owners != named
        if changed:
            self._write(replace(record, owners=named), "owners", record.history[-1].version, owners=named)
        return changed

    def apply(self) -> None:
        """Applies the record to the server."""
        server, name = self.server, self.model_name
        record = read_record(self.context.store, name)
        champion = record.champion
        if champion is None:
            if server.configured(name):
                server.withdraw(name)
            server.shares.set(name, None)
            return
        challenger = record.challenger
        former = [v for v in server.configured(name) if v in record.champions() and v != champion.version]
        if not server.keeps_former:
            former = []
        if not server.splits_traffic:  # a newer one would get requests without a version
            former = [v for v in former if v < champion.version]
        retained = sorted(former, key=record.champions().index)[: self.keep_versions - 1]
        versions = sorted({champion.version, *retained, *([challenger.version] if challenger else [])})
        if not self._is_available(champion.version):  # the server has restarted, and is configured by RPC
            server.serve(name, versions)
            server.wait_until_available(name, champion.version, self.available_timeout_s)
        if server.splits_traffic:
            # Before versions without traffic are unloaded.
            server.set_traffic(name, record.traffic)
        if server.configured(name) != versions:
            server.serve(name, versions)
        server.set_labels(name, _labels(record))
        if not server.splits_traffic:
            server.set_traffic(name, record.traffic)

    def apply_to_files(self) -> None:
        """Writes what the record decided into the files that a server which does not answer starts from."""
        record, name = read_record(self.context.store, self.model_name), self.model_name
        self.server.serve(name, sorted(_labels(record).values()), _labels(record))
        self.server.set_traffic(name, record.traffic)

    def outcome(self, changed: bool) -> dict[str, Any]:
        """Returns the versions that serve now; repairs aliases that a killed task left behind.

        Returns:
            ``model_name``, ``champion``, ``challenger`` (versions or None), ``traffic`` (version to percent),
            ``served`` (versions configured on the server), and ``changed``.
        """
        record = read_record(self.context.store, self.model_name)
        champion = record.champion.version if record.champion else None
        challenger = record.challenger.version if record.challenger else None
        self.registry.point_aliases(champion, challenger)
        shares = {str(version): percent for version, percent in record.traffic.items()}
        text = ", ".join(f"version {version}: {percent}%" for version, percent in shares.items()) or "nothing serves"
        self.context.progress(1.0, text if changed else f"{text} (decided before)")
        return {
            "model_name": self.model_name,
            "champion": champion,
            "challenger": challenger,
            "traffic": shares,
            "served": self.server.configured(self.model_name),
            "changed": changed,
        }

    def _deployed(self) -> tuple[ModelRecord, ServedVersion]:
        record = read_record(self.context.store, self.model_name)
        if record.champion is None:
            raise ModelNotFound(self.model_name).with_text(
                f"model {self.model_name!r} is not deployed; use DeployModelOperator first"
            )
        if "dag_id" in self.by:  # not a person at a terminal, who is trusted with all of the store
            record.check_owner(self.model_name, self.by["dag_id"])
        return record, record.champion

    def _take_over(self, record: ModelRecord, version: int, model: Artifact, event: str) -> None:
        """Makes another version the champion."""
        champion, challenger = record.champion, record.challenger
        assert champion is not None
        if challenger is not None and challenger.version == version:
            served = replace(challenger, since=now(), traffic_percent=100, baseline={}, rollout=None)
        else:
            path = self.server.folders.uri(self.model_name, version)
            served = ServedVersion.of(model, version, path, 100)
        self._load(served, champion)
        if challenger is not None and challenger.version != version:
            why = f"version {version} was made champion"
            facts = {"by": self.by, "to": version, "fingerprint": challenger.fingerprint}
            record = record.after("rolled_back", challenger.version, why, **facts)
        if event == "rolled_back":
            facts = {"by": self.by, "to": version, "fingerprint": champion.fingerprint}
            record = record.after("rolled_back", champion.version, self.reason, **facts)
        record = replace(record, champion=served, challenger=None)
        facts = {"fingerprint": model.fingerprint, "model": model.uri}
        self._write(record, "promoted", version, traffic={version: 100}, **facts)

    def _load(self, served: ServedVersion, champion: ServedVersion) -> None:
        """Has the server load a version unless it is available already.

        Raises:
            BadInput: the version was never published, and clients send the keys of the champion's look-up.
        """
        server, name, version = self.server, self.model_name, served.version
        configured = server.configured(name)
        if version in configured and not self.away and self._is_available(version):
            return

        def publish() -> bool:
            if server.folders.has(name, version):
                return False
            if published_lookup(server, name, champion.version) is not None:
                raise BadInput(
                    f"model {name!r}: the champion {champion.version} has a look-up, and version {version}, which is "
                    f"not in {server.folders.uri(name)}, would have none; publish it by DeployModelOperator with "
                    "lookup (and canary_percent=100 if clients are to send other keys)"
                )
            return server.publish(model_folder(self.context.store, served.model), name, version, served.fingerprint)

        if self.away:
            publish()
            return
        load_version(
            self.context, server, name, version, configured, publish=publish, timeout_s=self.available_timeout_s
        )

    def _is_available(self, version: int) -> bool:
        return any(state.state == "AVAILABLE" for state in self.server.status(self.model_name, version))

    def _decided_before(self, record: ModelRecord, event: str, **facts: Any) -> bool:
        """Returns whether an earlier try of the same task or request made this decision."""
        return any(
            entry.event == event
            and entry.by == self.by
            and all(getattr(entry, name) == value for name, value in facts.items())
            for entry in record.history
        )

    def _write(self, record: ModelRecord, event: str, version: int, **facts: Any) -> None:
        record = record.after(event, version, self.reason, by=self.by, **facts)
        write_record(self.context.store, self.model_name, record)


def _as_split(percents: Mapping[str, int]) -> dict[int, int]:
    if not isinstance(percents, Mapping):
        raise InvalidArgument("percents", percents, "; expected a mapping of versions to percents")
    bad = [version for version in percents if not str(version).isdigit() or int(version) < 1]
    if bad:
        raise BadInput(f"percents name version {bad[0]!r}; expected a positive integer")
    split = {int(version): percent for version, percent in percents.items()}
    try:
        check_split(split, "percents")
    except ConfigError as error:
        raise BadInput(str(error)) from error
    return {version: percent for version, percent in split.items() if percent}


def _labels(record: ModelRecord) -> dict[str, int]:
    """Returns the version of each label: of the champion's, and of the challenger's if there is one."""
    serving = {STABLE_LABEL: record.champion, CANARY_LABEL: record.challenger}
    return {label: served.version for label, served in serving.items() if served is not None}
