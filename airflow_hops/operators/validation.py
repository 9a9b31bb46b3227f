"""Operator that validates examples against the schema."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk import BranchMixIn

from airflow_hops.airflow_internals.tasks import AirflowFailException, HITLUser
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import AnomaliesProperties, ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.schema.history import frozen_name, publish_schema, schema_in_force
from airflow_hops.core.schema.page import PROPOSED_PAGE, write_page
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import HopsOperator, airflow_error
from airflow_hops.operators.links import LINEAGE_LINK, SCHEMA_LINK
from airflow_hops.operators.people import PersonAnswer, ask
from airflow_hops.operators.schema import is_deployed_with
from airflow_hops.runner.arguments import Length, ModelName
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

Action = Literal["fail", "warn", "branch", "ask"]
Severity = Literal["error", "warning"]
_SEVERITIES: tuple[Severity, ...] = get_args(Severity)

APPROVE, CONTINUE, REJECT = "Approve the proposed schema", "Go on once", "Reject"
_ON_TIMEOUT = {"reject": REJECT, "continue": CONTINUE}


class ValidateExamplesOperator(HopsOperator, BranchMixIn):
    """Validates the statistics of ``examples`` against the ``schema``, and fails, warns, branches or asks a person.

    The artifact ``anomalies`` holds ``<split>.pbtxt`` and ``anomalies.json``. If the data does not fit, it also holds
    ``proposed.pbtxt``, a schema that would accept the data, and ``proposal.md``, the change in readable form. It is
    always published. The task also pushes two XComs: ``schema``, the schema for downstream tasks, which is the approved
    one if there is one; and, with ``split_anomalous``, ``examples``, the good rows.

    Args:
        statistics: The output of ``StatisticsOperator``. (templated)
        schema: The output of ``SchemaOperator``. (templated)
        previous: Statistics of an earlier span, for the schema's drift comparators. (templated)
        model_name: A served model: each split is also compared with the champion's training data, by the tests of
            :class:`~airflow_hops.operators.SkewOperator`. A probable pipeline fault, such as another unit in some rows,
            is an error; drift is only reported. Nothing is compared if None, or before the first deployment.
            (templated)
        examples: The examples from which the statistics were computed, for ``split_anomalous``. (templated)
        splits: Splits to validate; None for all. (templated)
        environment: The schema's environment of the examples; "SERVING" for captured requests, which have no label.
            Ignored if the schema has no environments. (templated)
        on_anomaly: The action for each severity, by default ``{"error": "fail", "warning": "warn"}``; a single action
            is for errors. "fail" fails the task without a retry, "warn" logs, "branch" follows ``otherwise``. "ask"
            waits, without a worker slot, for a person, who approves the proposed schema (not of another DAG), continues
            once, or rejects.
        follow: Task ids to follow if no anomaly branches; only with "branch".
        otherwise: Task ids to follow if an anomaly branches.
        split_anomalous: Whether to move rows that break the schema to ``quarantine/<split>`` of the artifact, with the
            reasons, and the good rows into an ``examples`` artifact.
        ask_timeout: How long to wait for an answer; None waits forever.
        on_timeout: Action if nobody answers: "reject" or "continue". Only a person can approve.
        assigned_users: Users who may answer, each as ``{"id": ..., "name": ...}``; None for everyone who may answer for
            the DAG.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Raises:
        ValueError: An argument has an unknown value, or an argument that it requires is missing.
    """

    entry = "airflow_hops.ml.validation:run"
    output_kind = "anomalies"
    template_fields: Sequence[str] = (
        *HopsOperator.template_fields,
        "statistics",
        "schema",
        "previous",
        "model_name",
        "examples",
        "splits",
        "environment",
    )
    operator_extra_links = (SCHEMA_LINK, LINEAGE_LINK)
    approved: Artifact | None = None
    """The frozen schema that a person approved in the last execution."""

    def __init__(
        self,
        *,
        statistics: Any,
        schema: Any,
        previous: Any = None,
        model_name: ModelName | None = None,
        examples: Any = None,
        splits: Sequence[str] | None = None,
        environment: str = "TRAINING",
        on_anomaly: Action | Mapping[Severity, Action] = "fail",
        follow: str | Sequence[str] | None = None,
        otherwise: str | Sequence[str] | None = None,
        split_anomalous: bool = False,
        ask_timeout: Length | None = None,
        on_timeout: Literal["reject", "continue"] = "reject",
        assigned_users: Sequence[HITLUser] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statistics = statistics
        self.schema = schema
        self.previous = previous
        self.model_name = model_name
        self.examples = examples
        self.splits = splits
        self.environment = environment
        self.split_anomalous = split_anomalous
        self.ask_timeout = ask_timeout
        self.on_timeout = on_timeout
        self.assigned_users = assigned_users
        self.check_arguments(ValidateExamplesOperator, on_anomaly=on_anomaly, follow=follow, otherwise=otherwise)
        self.follow = _task_ids(follow)
        self.otherwise = _task_ids(otherwise)
        named: Mapping[Severity, Action] = {"error": on_anomaly} if isinstance(on_anomaly, str) else dict(on_anomaly)
        self.on_anomaly: dict[Severity, Action] = {"error": "fail", "warning": "warn", **named}
        self._schema_in_use: Artifact | None = None
        if "branch" in self.on_anomaly.values() and not (self.follow or self.otherwise):
            raise ValueError("on_anomaly='branch' needs the ids of the tasks that follow: follow=..., otherwise=...")
        if self.split_anomalous and self.examples is None:
            raise ValueError("split_anomalous=True needs the rows of the statistics: examples=...")

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the statistics, the schema, earlier statistics and, if rows are split, the examples."""
        return {
            "statistics": self.statistics,
            "schema": self.schema,
            "previous": self.previous,
            "examples": self.examples if self.split_anomalous else None,
        }

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the splits, their environment, and whether their rows are split."""
        splits = list(self.splits) if self.splits else None
        return {"splits": splits, "environment": self.environment, "split_anomalous": self.split_anomalous}

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec; with "ask", it validates against the schema currently at the frozen address."""
        spec = super().build_spec(hook, context)
        (schema,) = spec.inputs["schema"]
        if "ask" in self.on_anomaly.values():
            # A schema that was approved in an earlier try, or edited while the task waited, takes precedence.
            schema = schema_in_force(hook.store, schema.uri)
            spec = replace(spec, inputs={**spec.inputs, "schema": (schema,)})
        if self.model_name:
            spec = self._with_champion(spec, hook.store)
        self._schema_in_use = schema
        return spec

    def _with_champion(self, spec: StepSpec, store: ArtifactStore) -> StepSpec:
        """Returns the spec with the statistics of the champion's training data, if there is a champion."""
        champion = read_record(store, str(self.model_name)).champion
        if champion is None:
            self.log.info("No version of model %r serves yet: there is nothing to compare with", self.model_name)
            return spec
        name = f"version {champion.version} of {self.model_name!r}"
        try:
            if not champion.statistics:
                raise BadInput("it was trained without statistics")
            statistics = store.manifest(champion.statistics).reference(champion.statistics)
            if ModelProperties.of(champion.model).statistics_fingerprint not in (None, statistics.fingerprint):
                raise BadInput(f"{statistics.uri} was computed again since it was trained")
        except BadInput as error:
            return replace(spec, params={**spec.params, "not_compared": f"{name}: {error}."})
        inputs = {**spec.inputs, "champion": (statistics,)}
        return replace(spec, inputs=inputs, params={**spec.params, "champion": name})

    def execute(self, context: Context) -> Any:
        """Validates, and acts by the severity of the anomalies."""
        value = super().execute(context)
        assert self._schema_in_use is not None
        failing = self._anomalies(value, "fail")
        if failing:
            what_to_do = _advice(RuntimeHook(self.hops_conn_id).store, self._schema_in_use.uri, value)
            headline = f"{self._count(value, 'fail')} anomalies, see {value['uri']}:"
            # A failed task returns nothing, but people and web pages still need the artifact.
            context["ti"].xcom_push(key="return_value", value=value)
            raise AirflowFailException("\n".join([headline, *failing, *what_to_do]))
        if self._anomalies(value, "ask"):
            count, store = self._count(value, "ask"), RuntimeHook(self.hops_conn_id).store
            proposal, schema = store.read_text(f"{value['uri']}/proposal.md"), self._schema_in_use
            owner, name = frozen_name(schema.uri) or (self.dag_id, "")
            can_approve = _properties(value).proposed_features is not None
            if can_approve and owner != self.dag_id:
                can_approve = False
                proposal += (
                    f"\nThe schema belongs to DAG {owner!r}, so the change cannot be approved here, but there, or by: "
                    f"airflow hops schema approve {owner} {name} {value['uri']}/proposed.pbtxt\n"
                )
            ask(
                context,
                f"Data of {self.dag_id} does not fit its schema ({count} of the anomalies below)",
                proposal,
                [*([APPROVE] if can_approve else []), CONTINUE, REJECT],
                default=_ON_TIMEOUT[self.on_timeout],
                timeout=self.ask_timeout,
                note="Reason; stored with the schema",
                assigned_users=self.assigned_users,
                value=dict(value),
                schema=schema.to_dict(),
            )
        return self._go_on(context, value, self._schema_in_use)

    def execute_complete(self, context: Context, event: Mapping[str, Any], **asked: Any) -> Any:
        """Carries out the person's answer; ``asked`` has ``value`` and ``schema`` of the validation.

        In ``params_input`` the event has ``note`` and, for an approval, ``schema``, protobuf text to approve instead of
        the proposed schema.
        """
        value, schema = asked["value"], Artifact.from_dict(asked["schema"])
        # The task may fail below, and a failed task returns nothing.
        context["ti"].xcom_push(key="return_value", value=value)
        answer = PersonAnswer.of(event, self.ask_timeout)
        if answer.choice == REJECT:
            reply = f"{answer.choice!r} by {answer.by}" + (f": {answer.note}" if answer.note else "")
            raise AirflowFailException(f"{reply}; the data does not fit {schema.uri}, see {value['uri']}")
        if answer.choice == APPROVE:
            edited = (event.get("params_input") or {}).get("schema")
            by = {"approved_by": answer.by, "note": answer.note, "run_id": context["ti"].run_id}
            schema = self.approved = self._publish(Artifact.from_dict(value), schema, edited, by)
        self._announce(context, Artifact.from_dict(value))
        return self._go_on(context, {**value, "answer": asdict(answer)}, schema)

    def _anomalies(self, value: Mapping[str, Any], action: Action) -> list[str]:
        properties = _properties(value)
        texts = {"error": properties.errors, "warning": properties.warnings}
        return [text for severity in _SEVERITIES if self.on_anomaly[severity] == action for text in texts[severity]]

    def _count(self, value: Mapping[str, Any], action: Action) -> int:
        return sum(int(value["metrics"][f"{s}s"]) for s in _SEVERITIES if self.on_anomaly[s] == action)

    def _publish(self, anomalies: Artifact, schema: Artifact, edited: str | None, by: Mapping[str, Any]) -> Artifact:
        """Freezes the proposed or edited schema, unless the anomalies or schema changed since the question."""
        hook = RuntimeHook(self.hops_conn_id)
        store, who = hook.store, by["approved_by"]
        try:
            now = store.manifest(anomalies.uri)
            if now.fingerprint != anomalies.fingerprint:
                raise AirflowFailException(
                    f"{who} approved what {anomalies.uri} said (fingerprint {anomalies.fingerprint[:12]}…), and it "
                    f"has changed since ({now.fingerprint[:12]}…): nothing was overwritten; clear the task to ask again"
                )
            if edited is not None:
                named = {"uri": schema.uri, "text": edited, "source": f"{who}'s edit", "replaces": schema.fingerprint}
                entry = "airflow_hops.ml.schema.stage:publish"
                hook.run(StepSpec(step="publish-schema", entry=entry, params={**named, **by}), cache=False)
                return store.manifest(schema.uri).reference(schema.uri)
            text = store.read_text(f"{anomalies.uri}/proposed.pbtxt")
            with suppress(FileNotFoundError):  # an older version wrote no description
                write_page(store, schema.uri, text, store.read_text(f"{anomalies.uri}/{PROPOSED_PAGE}"))
            return publish_schema(
                store,
                schema.uri,
                text,
                **by,
                features=AnomaliesProperties.of(anomalies).proposed_features,
                replaces=schema.fingerprint,
            )
        except HopsError as error:
            raise airflow_error(error) from error

    def _go_on(self, context: Context, value: dict[str, Any], schema: Artifact) -> Any:
        properties = _properties(value)
        context["ti"].xcom_push(key="schema", value=schema.to_dict())
        if self.split_anomalous:
            context["ti"].xcom_push(key="examples", value=properties.examples)
        if value.get("cached"):  # otherwise the step has logged them
            for text in [*properties.errors, *properties.warnings, *properties.drift]:
                self.log.warning("%s", text)
        if "branch" in self.on_anomaly.values():
            self.do_branch(context, self.otherwise if self._anomalies(value, "branch") else self.follow)
        return value


def _advice(store: ArtifactStore, schema_uri: str, value: Mapping[str, Any]) -> list[str]:
    """Returns instructions for changing the schema if the data is right."""
    frozen = frozen_name(schema_uri)
    if frozen is None:
        return []
    name, proposed = " ".join(map(shlex.quote, frozen)), shlex.quote(f"{value['uri']}/proposed.pbtxt")
    lines = [f"If the data is right, change the frozen schema {schema_uri}:"]
    if _properties(value).proposed_features is not None:
        lines.append(f"  airflow hops schema diff {name} {proposed}     # what this data needs")
        lines.append(f"  airflow hops schema approve {name} {proposed}  # the next run uses it")
    lines.append(f"  airflow hops schema reset {name}  # the next run infers it again")
    if not is_deployed_with(store, schema_uri):
        lines.append(
            "No deployed model was trained with it yet: SchemaOperator(freeze_at='deployment') infers it again in "
            "every run until one is."
        )
    return lines


def _properties(value: Mapping[str, Any]) -> AnomaliesProperties:
    return AnomaliesProperties.of(Artifact.from_dict(value))


def _task_ids(named: str | Sequence[str] | None) -> list[str]:
    return [named] if isinstance(named, str) else list(named or [])
