"""Decisions of people on serving: promote, set traffic, roll back.

They run the same steps as the operators (``airflow_hops/ml/deploy/traffic.py``) in the runtime environment. A
step locks the model, records the decision before it applies it, and executes a repeated request only once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, HTTPException
from pydantic import Field, StringConstraints

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError, StepFailed
from airflow_hops.hooks.model_server import run_decision
from airflow_hops.web.access import TRIGGERS_RUNS
from airflow_hops.web.models.records import Decided, ServedModelOf, read_model_record
from airflow_hops.web.models.routes import candidates_of, evaluated, judged
from airflow_hops.web.owners import NewOwners, Reason, check_new_owners
from airflow_hops.web.types import Json

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}", tags=["models"], dependencies=[TRIGGERS_RUNS])
log = logging.getLogger(__name__)

Version = Annotated[int, Field(ge=1, lt=2**31)]
Percent = Annotated[int, Field(ge=0, le=100)]
RequestId = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9-]{8,64}$"),
    Body(description="Id that the client chooses; a repeated request is not executed again"),
]


Outcome = dict[str, Json]
"""The XCom of the operator of the same decision: the state of the model after it."""


@dataclass(frozen=True)
class RequestedDecision:
    """A decision of a person on a model."""

    user: GetUserDep
    served: ServedModelOf
    reason: str
    request_id: str

    def run(self, function: str, **params: Any) -> Outcome:
        """Runs its step; HTTPException with 422 if it is impossible, 502 if a service does not answer."""
        served, who = self.served, self.user.get_name()
        log.info("model %r of DAG %r: %s %r by %r", served.name, served.dag_id, function, params, who)
        params |= {"model_name": served.name, "reason": self.reason}
        params |= {"by": {"dag_id": served.dag_id, "user": who, "request_id": self.request_id}}
        producer = Producer(served.dag_id, f"web__{self.request_id}", function)
        try:
            return run_decision(
                served.hook, function, producer, lambda line: log.log(line.level, "%s", line.text), **params
            )
        except StepFailed as error:
            raise HTTPException(502 if error.retryable else 422, str(error.error or error)) from error
        except HopsError as error:
            raise HTTPException(502, str(error)) from error


def _requested(user: GetUserDep, served: Decided, reason: Reason, request_id: RequestId) -> RequestedDecision:
    return RequestedDecision(user, served, reason, request_id)


Requested = Annotated[RequestedDecision, Depends(_requested)]


@router.post("/promote")
def promote_model_version(decision: Requested, version: Annotated[Version | Literal["challenger"], Body()]) -> Outcome:
    """Gives all traffic to a version and makes it the champion."""
    return decision.run("promote", version=None if version == "challenger" else version)


@router.post("/traffic")
def set_model_traffic(
    decision: Requested,
    percents: Annotated[dict[Version, Percent], Body(description="Whole percents by version; they sum to 100")],
) -> Outcome:
    """Sets the shares of champion and challenger."""
    return decision.run("set_traffic", percents={str(version): percent for version, percent in percents.items()})


@router.post("/replace")
def replace_model_champion(
    decision: Requested,
    fingerprint: Annotated[
        str,
        StringConstraints(pattern=r"^[0-9a-f]{64}$"),
        Body(description="Fingerprint of one of the model's candidates"),
    ],
) -> Outcome:
    """Makes a candidate the champion deliberately, even one that was refused or has other inputs.

    Raises:
        HTTPException: 404, the user may not read an evaluation of such a candidate.
    """
    served = decision.served
    with create_session() as session:
        candidates = candidates_of(evaluated(judged(session, decision.user, [served.model])[served.model]), None)
    candidate = next((each for each in candidates if each.fingerprint == fingerprint), None)
    if candidate is None:
        raise HTTPException(404, f"no candidate of model {served.name!r} has the fingerprint {fingerprint}")
    return decision.run("replace_champion", model=candidate.uri)


@router.post("/roll_back")
def roll_back_model(
    decision: Requested,
    to_version: Annotated[
        Version | Literal["previous"],
        Body(description="The previous one removes the canary, or, if there is none, restores the former champion"),
    ],
    if_away: Annotated[
        bool, Body(description="Write the decision for a server that does not answer, which starts from files")
    ] = False,
) -> Outcome:
    """Takes the canary out of service, or restores a former champion."""
    return decision.run("roll_back", to_version=None if to_version == "previous" else to_version, if_away=if_away)


@router.post("/owners")
def set_model_owners(decision: Requested, owners: NewOwners) -> Outcome:
    """Names the DAGs that may deploy the model and decide on it. The user must be allowed to trigger each."""
    served = decision.served
    check_new_owners(decision.user, read_model_record(served.hook.store, served.name).owners, owners)
    return decision.run("set_owners", owners=list(dict.fromkeys(owners)))
