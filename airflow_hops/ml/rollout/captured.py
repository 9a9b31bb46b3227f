"""Compares what the server captured of a canary and of the stable version: predictions, and labels that came later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ServedVersion
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.rollout.decision import NOT_JUDGED, UNKNOWN, CanaryFinding
from airflow_hops.core.rollout.plan import Limits
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import requests_of_logs
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.rollout.answers import Captured, read_captured, read_labelled
from airflow_hops.ml.rollout.labels import NOTHING, LabelledAnswers, compare_labels
from airflow_hops.ml.rollout.late_labels import as_feedback
from airflow_hops.ml.rollout.predictions import Answers, compare_predictions
from airflow_hops.ml.step.context import StepContext

Labelled = tuple[dict[str, LabelledAnswers], dict[str, LabelledAnswers], str]
"""Labelled rows of the canary and of the stable version, by output, and a note on the labels."""


@dataclass(frozen=True)
class ServedPair:
    """Canary and stable version whose captured requests are compared.

    Attributes:
        since: Start of the current step, ISO 8601 UTC.
        changes: When the shares of the traffic changed, ascending, ISO 8601 UTC.
        is_alone: Whether the canary has all the traffic.
        labels: Where labels are; None for the feedback that clients sent.
        known: The labelled rows, if they were read already.
    """

    canary: ServedVersion
    stable: ServedVersion
    since: str
    changes: tuple[str, ...]
    is_alone: bool
    limits: Limits
    labels: PerformanceOptions | None = None
    known: Labelled | None = None

    def compare(
        self, context: StepContext, server: ModelServer, model_name: str, significance: float
    ) -> list[CanaryFinding]:
        """Compares the predictions of this step, and the losses on labelled rows of all steps."""
        unjudged = self.limits.unjudged_predictions
        requests = self._requests(context, server, model_name)
        if requests is None:
            return [CanaryFinding("predictions", unjudged, "the connection names no capture path")]
        server.flush_capture()
        if self.is_alone:
            findings = [CanaryFinding("predictions", NOT_JUDGED, "the stable version gets no requests at 100%")]
        else:
            ours, theirs = self._captured(requests, self.since)
            share, nothing = significance / max(1, len(ours.outputs)), Answers(np.empty(0), np.empty(0, np.int64))
            findings = [
                compare_predictions(
                    values, theirs.outputs.get(name, nothing), name, self.limits, share, self._common_classes
                )
                for name, values in sorted(ours.outputs.items())
            ] or [CanaryFinding("predictions", unjudged, "no numeric output of the canary was captured")]
        return findings + self.compare_labels(self.known or self.labelled(context, server, model_name), significance)

    def _requests(self, context: StepContext, server: ModelServer, model_name: str) -> CapturedRequests | None:
        if server.reads_log:
            return requests_of_logs(context, model_name, self.canary.since)
        return CapturedRequests.of(context.spec.services, context.store, model_name)

    def labelled(self, context: StepContext, server: ModelServer, model_name: str) -> Labelled:
        """Reads the labelled rows of all steps."""
        requests = self._requests(context, server, model_name)
        assert requests is not None
        changes = [datetime.fromisoformat(change) for change in self.changes]
        if self.labels is None:
            feedback, note = requests.feedback(), ""
        else:
            name = self.labels.label_column or self._trained[0].label
            if name is None:
                raise BadInput(f"model {model_name!r} names no label; give labels['label_column']")
            versions, since = (self.canary.version, self.stable.version), datetime.fromisoformat(self.canary.since)
            feedback, counts = as_feedback(context, requests, self.labels, name, versions, since, changes)
            note = "; labels: " + ", ".join(f"{count} {name}" for name, count in counts.to_dict().items() if count)
        ours, theirs = dict[str, LabelledAnswers](), dict[str, LabelledAnswers]()
        if feedback.num_rows:
            ids = feedback["request_id"].cast(pa.string()).combine_chunks()
            further = {name for trained in self._trained for name in trained.more_labels or ()}
            ours, theirs = (
                read_labelled(each, feedback, trained.label, trained.classes, self._common_classes, further, changes)
                for each, trained in zip(self._captured(requests, self.canary.since, ids), self._trained, strict=True)
            )
        return ours, theirs, note

    def compare_labels(self, labelled: Labelled, significance: float) -> list[CanaryFinding]:
        """Compares the losses on labelled rows of all steps."""
        ours, theirs, note = labelled
        names = sorted(ours.keys() | theirs.keys())
        share = significance / max(1, len(names))
        findings = [
            compare_labels(ours.get(name, NOTHING), theirs.get(name, NOTHING), name, self.limits, share)
            for name in names
        ]
        if not findings and self.limits.wait_for_labels:
            findings = [CanaryFinding("labels", UNKNOWN, "no step has labelled rows of both versions yet")]
        return [replace(each, text=each.text + note) for each in findings]

    @property
    def _trained(self) -> tuple[ModelProperties, ModelProperties]:
        return ModelProperties.of(self.canary.model), ModelProperties.of(self.stable.model)

    @property
    def _common_classes(self) -> list[str] | None:
        mine, stable = (trained.classes for trained in self._trained)
        return [name for name in mine if name in stable] if mine and stable else None

    def _captured(
        self, requests: CapturedRequests, since: str, ids: pa.Array | None = None
    ) -> tuple[Captured, Captured]:
        """Returns the answers of both versions since a time, by default to all requests, with the classes of both."""
        ours, theirs = (
            read_captured(requests, served.version, datetime.fromisoformat(since), ids).of_classes(
                trained.classes, self._common_classes
            )
            for served, trained in zip((self.canary, self.stable), self._trained, strict=True)
        )
        return ours, theirs
