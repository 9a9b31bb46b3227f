"""Operator that infers the schema of a pipeline's examples once and freezes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_hops.core.artifacts.artifact import Producer, as_cached
from airflow_hops.core.errors import UnreadableFile
from airflow_hops.core.models.model_record import read_records
from airflow_hops.core.schema.history import IMPORTED, changed_by_person, has_schema, is_edited, requested_reset
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, SCHEMA_LINK
from airflow_hops.runner.arguments import Share
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

ARGUMENTS = "schema arguments"
FUNCTION = "schema function"
"""Parts of a manifest's cache key: the arguments of the inference, and the function that amended the schema."""


FreezeAt = Literal["first_run", "deployment"]
Comparator = Literal["distance", "infinity_norm", "jensen_shannon"]


class SchemaOperator(HopsOperator):
    """Infers the TFDV schema on the first run, and returns the same schema in later runs.

    The artifact ``schema`` holds ``schema.pbtxt``. It has one address per pipeline,
    ``<store>/<dag_id>/_frozen/<name>/schema``. Later runs start no process unless the schema was edited.

    Args:
        statistics: The output of ``StatisticsOperator``. The schema is inferred from its split ``train``, or ``data``
            for a source. May be None with ``schema``; label, key and time are then unknown. (templated)
        schema: Path of a ``schema.pbtxt`` that you maintain, relative to the DAG file's folder. It is frozen instead of
            an inferred schema, and published as a new version whenever the file changes. (templated)
        name: Name of the frozen schema; by default the task's id. (templated)
        freeze_at: When the schema stops following the data: "first_run", or "deployment". With "deployment", each run
            infers it again until a model trained with it is deployed, or a person approves or edits it.
        distance: Threshold of the drift and skew comparators: the least share of the rows that would have to change, 0
            to 1; None for 0.05.
        comparators: Thresholds of individual features by measure: ``{"temp": {"distance": 0.1}, "gate": {}}``. A
            feature without a measure has no comparator. "infinity_norm" and "jensen_shannon" are TFDV's measures.
        environments: The schema's environments, each with the features that it lacks; None for
            ``{"TRAINING": [], "SERVING": [label, weight]}``.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Raises:
        ValueError: Neither ``statistics`` nor ``schema`` is set, ``schema`` is combined with an argument of the
            inference, or ``freeze_at`` is unknown.
    """

    entry = "airflow_hops.ml.schema.stage:run"
    output_kind = "schema"
    input_arguments = ("statistics",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "statistics", "schema", "name")
    operator_extra_links = (SCHEMA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        statistics: Any = None,
        schema: str | None = None,
        name: str | None = None,
        freeze_at: FreezeAt = "first_run",
        distance: Share | None = None,
        comparators: Mapping[str, Mapping[Comparator, Share]] | None = None,
        environments: Mapping[str, Collection[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statistics = statistics
        self.schema = schema
        self.name = name
        self.freeze_at = freeze_at
        self.distance = distance
        self.comparators = comparators
        self.environments = environments
        self.check_arguments(SchemaOperator)
        if statistics is None and schema is None:
            raise ValueError("SchemaOperator: expected statistics to infer the schema from, or a schema's path")
        without_effect = [*self._inference(), *(["freeze_at"] if freeze_at != "first_run" else [])]
        if schema is not None and without_effect:
            raise ValueError(f"SchemaOperator: schema is given, so that {', '.join(without_effect)} has no effect")

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the inference, or the file to import."""
        if self.schema is None:
            return self._inference()
        path = Path(context["dag"].fileloc).parent / Path(str(self.schema)).expanduser()
        try:
            return {"imported": {"path": str(self.schema), "text": path.read_text(encoding="utf-8")}}
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableFile(path, f": cannot be read as a schema in protobuf text ({error})") from None

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns the options that the schema was frozen with, so that a later change can be reported."""
        return {ARGUMENTS: _sha256(json.dumps(self._inference(), sort_keys=True))}

    def output_uri(self, hook: RuntimeHook, producer: Producer) -> str:
        """Returns the frozen schema's address."""
        return hook.store.frozen_schema(producer.dag_id, self.name or producer.task_id)

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Returns the frozen schema, or starts the step that freezes it or publishes manual changes."""
        uri = self.output_uri(hook, Producer(context["ti"].dag_id, context["ti"].run_id, self.task_id))
        spec = self.build_spec(hook, context)
        if has_schema(hook.store, uri) and not requested_reset(hook.store, uri):
            if self._follows_data(hook.store, uri):
                spec = replace(spec, params={**spec.params, "again": "no model was deployed with the previous one"})
                return hook.run(spec, launcher=self.chosen_launcher(hook), cache=False)
            manifest = hook.store.manifest(uri)
            now = self.step_cache_key_parts(hook)
            for part in (ARGUMENTS, FUNCTION):
                if ARGUMENTS in manifest.cache_key_parts and manifest.cache_key_parts.get(part) != now.get(part):
                    self.log.warning(
                        "The %s changed since the schema was frozen, but this has no effect on %s: publish a new "
                        "version with "
                        "'airflow hops schema approve', or have it inferred again with 'airflow hops schema reset'",
                        part,
                        uri,
                    )
            imported = spec.params.get("imported")
            same = imported is None or manifest.cache_key_parts.get(IMPORTED) == _sha256(imported["text"])
            if same and not is_edited(hook.store, uri):
                self.log.info("Frozen: %s", uri)
                frozen = as_cached(manifest.reference(uri))
                return StepResult(value=frozen.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})
        return hook.run(spec, launcher=self.chosen_launcher(hook), cache=False)

    def _follows_data(self, store: ArtifactStore, uri: str) -> bool:
        if self.freeze_at == "first_run":
            return False
        return not changed_by_person(store, uri) and not is_deployed_with(store, uri)

    def _inference(self) -> dict[str, Any]:
        environments = self.environments
        if isinstance(environments, Mapping):
            # Sets are not JSON; the step refuses a single string.
            environments = {name: v if isinstance(v, str) else sorted(v) for name, v in environments.items()}
        arguments = {
            "distance": self.distance,
            "comparators": self.comparators,
            "environments": environments,
        }
        return {name: value for name, value in arguments.items() if value is not None}


def is_deployed_with(store: ArtifactStore, uri: str) -> bool:
    """Returns whether a champion or canary was trained with the frozen schema at ``uri``."""
    return any(served.schema == uri for _, record in read_records(store) for served in record.serving.values())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
