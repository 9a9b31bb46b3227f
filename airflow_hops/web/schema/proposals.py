"""Schemas that validations propose: their changes, and decisions of people on them.

A task with ``on_anomaly="ask"`` is answered through Airflow's own route. Proposals of validations that failed or warned
are approved or rejected here. An approval becomes a version of the frozen schema. Decisions are
stored next to the schema, in ``proposals/``.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Depends, HTTPException, Response
from sqlalchemy import select

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import TaskInstance, TaskInstanceState, create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import AnomaliesProperties
from airflow_hops.core.schema.changes import SchemaComparison
from airflow_hops.core.schema.history import SchemaChanged, frozen_name, publish_schema, schema_history
from airflow_hops.core.schema.page import PROPOSED_CHANGES, PROPOSED_PAGE, write_page
from airflow_hops.web.access import TRIGGERS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import FoundArtifact, Gone, TaskArtifact, TaskInstancePath, is_of, reaching
from airflow_hops.web.owners import Reason
from airflow_hops.web.schema.validation_report import PROPOSED_FILE, input_of
from airflow_hops.web.schema.validations import has_changed, schema_of
from airflow_hops.web.types import Model, TaskAddress, Time

router = APIRouter(
    prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/proposal", tags=["validation"]
)
log = logging.getLogger(__name__)

Choice = Literal["approved", "rejected"]


class ProposalDecision(Model):
    """A person's decision on a proposed schema."""

    choice: Choice
    by: str
    at: Time
    note: str
    version: int | None
    """Version of the frozen schema that the approval created."""


class ProposalReview(Model):
    """A proposed schema and the decisions on it."""

    fingerprint: str
    """Fingerprint of the validation."""
    decisions: list[ProposalDecision]
    """Oldest first; the last one is in effect."""
    may_decide: bool
    """Whether a decision is possible, and the user may make it."""
    closed: str | None
    """Reason why no decision is possible here."""


@dataclass(frozen=True)
class Proposal:
    """A proposed schema.

    Attributes:
        found: Artifact of the validation.
        task: Task instance in the path; the artifact may come from another one that it reused.
        schema: Schema that the data was validated against, at the address of the frozen schema.
    """

    found: FoundArtifact
    user: GetUserDep
    task: TaskAddress
    schema: Artifact

    def closed(self) -> str | None:
        """Returns why no decision is possible here, or None."""
        if frozen_name(self.schema.uri) is None:
            return f"the data was held against {self.schema.uri}, which is not a frozen schema"
        with create_session() as session:
            state = session.scalar(select(TaskInstance.state).where(*is_of(TaskInstance, self.task.producer)))
        if state == TaskInstanceState.AWAITING_INPUT:
            return "the task waits for an answer: answer there"
        if has_changed(self.found.store, self.schema):
            return "the schema has changed since: clear the task to validate the data against the current schema"
        return None

    def may_decide(self) -> bool:
        """Returns whether the user may change the schema, which may belong to another DAG."""
        owner = frozen_name(self.schema.uri)
        dag_ids = {self.task.dag_id} | ({owner.dag_id} if owner else set())
        return all(may_change(self.user, dag_id) for dag_id in dag_ids)

    def review(self, decisions: list[ProposalDecision]) -> ProposalReview:
        """Returns the review for the page."""
        closed = self.closed()
        may_decide = closed is None and self.may_decide()
        return ProposalReview(
            fingerprint=self.found.artifact.fingerprint,
            decisions=decisions,
            may_decide=may_decide,
            closed=closed,
        )


def find_proposal(found: TaskArtifact, user: GetUserDep, task: TaskInstancePath) -> Proposal:
    """Returns the proposal of a validation.

    Raises:
        HTTPException: 404, the validation proposes nothing; 410, its schema is gone, or the user may not read it; 502,
            the store cannot be read.
    """
    if not found.has(PROPOSED_FILE):
        found.read_text(PROPOSED_FILE)
    if not found.has(PROPOSED_CHANGES):
        raise HTTPException(409, found.without_page())
    values = schema_of(found.manifest)
    if values is None or input_of(found, user, task.dag_id, "schema") is None:
        raise Gone("the schema that the data was held against was deleted, or you do not have permission to read it")
    return Proposal(found, user, TaskAddress.of(task), values)


TaskProposal = Annotated[Proposal, Depends(find_proposal)]


@router.get("", response_model=SchemaComparison)
def get_proposal(proposal: TaskProposal) -> Response:
    """Returns the changes of the proposed schema compared with the one that the data was validated against."""
    return Response(proposal.found.read_text(PROPOSED_CHANGES), media_type="application/json")


@router.get("/review")
def review_proposal(proposal: TaskProposal) -> ProposalReview:
    """Returns the decisions on the proposed schema."""
    with reaching(proposal.found.store):
        return proposal.review(_decisions(proposal.found, proposal.schema))


@router.post("", dependencies=[TRIGGERS_RUNS])
def decide_proposal(
    proposal: TaskProposal,
    choice: Annotated[Literal["approve", "reject"], Body()],
    reason: Reason,
    fingerprint: Annotated[str, Body(description="Of the reviewed validation, which must be the newest of its task")],
    decisions: Annotated[int, Body(ge=0, description="Number at the time of the review, which must still be theirs")],
) -> ProposalReview:
    """Approves the proposed schema, or rejects it.

    Raises:
        HTTPException: 403, the schema belongs to another DAG that the user may not change; 409, the schema, the
            proposal or the decisions have changed since, or the task itself asks.
    """
    if not proposal.may_decide():
        raise HTTPException(403, f"you do not have permission to change the schema {proposal.schema.uri}")
    if fingerprint != proposal.found.artifact.fingerprint:
        raise HTTPException(409, "the task has run again and made a new proposal; review it before you decide")
    store, by, version = proposal.found.store, proposal.user.get_name(), None
    with reaching(store), store.lock(_folder(proposal.schema)):
        if (closed := proposal.closed()) is not None:
            raise HTTPException(409, closed)
        taken = _decisions(proposal.found, proposal.schema)
        if len(taken) != decisions:
            last = taken[-1] if taken else None
            what = f"{last.by} has {last.choice} it in the meantime" if last else "the decisions on it were deleted"
            raise HTTPException(409, f"{what}; review it again before you decide")
        made: Choice = "approved" if choice == "approve" else "rejected"
        if choice == "approve":
            uri, text = proposal.schema.uri, proposal.found.read_text(PROPOSED_FILE)
            write_page(store, uri, text, proposal.found.read_text(PROPOSED_PAGE))
            try:
                publish_schema(
                    store,
                    uri,
                    text,
                    approved_by=by,
                    note=reason,
                    run_id=proposal.task.run_id,
                    features=AnomaliesProperties.of(proposal.found.artifact).proposed_features,
                    replaces=proposal.schema.fingerprint,
                )
            except SchemaChanged as error:
                raise HTTPException(409, str(error)) from error
            version = schema_history(store, uri)[-1].version
        now = datetime.now(UTC).replace(microsecond=0)
        taken.append(ProposalDecision(choice=made, by=by, at=now, note=reason, version=version))
        report = json.dumps([each.model_dump(mode="json") for each in taken], indent=1)
        store.write_text(_record(proposal.found, proposal.schema), report)
    log.info("proposal of %s %s by %r", proposal.task, made, by)
    return proposal.review(taken)


def waits_for_decision(found: FoundArtifact) -> bool:
    """Returns whether a validation's proposal applies to the schema in force and is still undecided.

    Raises:
        HTTPException: 502, the store cannot be read.
    """
    schema = schema_of(found.manifest)
    if schema is None or has_changed(found.store, schema):
        return False
    with reaching(found.store):
        return not _decisions(found, schema)


def _folder(schema: Artifact) -> str:
    return f"{schema.uri.rpartition('/')[0]}/proposals"


def _record(result: FoundArtifact, schema: Artifact) -> str:
    """Returns the address of the file with the decisions on a proposal."""
    maker = result.manifest.producer
    about = [maker.dag_id, maker.run_id, maker.task, result.artifact.fingerprint]
    return f"{_folder(schema)}/{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]}.json"


def _decisions(result: FoundArtifact, schema: Artifact) -> list[ProposalDecision]:
    """Returns the decisions on a proposal, oldest first."""
    try:
        json = result.store.read_json(_record(result, schema))
    except FileNotFoundError:
        return []
    return [ProposalDecision.model_validate(each) for each in json]
