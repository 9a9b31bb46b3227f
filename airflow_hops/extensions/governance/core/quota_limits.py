"""Quotas of a connection: how much its steps may use in 30 days, and at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from airflow_hops.core.errors import BadInput, QuotaExceeded
from airflow_hops.core.names import check_known
from airflow_hops.core.steps.protocol import StepSpec

DAYS = 30
"""Days whose hours count."""

_EXEMPT = ("deployment", "rollout")
"""Kinds of artifacts of steps that change what is served: a quota must not hold up a rollback."""


@dataclass(frozen=True)
class Used:
    """Use by steps: seconds of cores and GPUs in the last :data:`DAYS` days, and the size of all artifacts."""

    core_s: float = 0.0
    gpu_s: float = 0.0
    size_bytes: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(self.core_s + other.core_s, self.gpu_s + other.gpu_s, self.size_bytes + other.size_bytes)


@dataclass(frozen=True)
class QuotaLimits:
    """Limits of a DAG, or of all DAGs of a connection; None for no limit.

    Attributes:
        core_hours: Of CPU cores in the last :data:`DAYS` days.
        gpu_hours: Of GPUs in the last :data:`DAYS` days. It stops only steps that train.
        store_gib: Size of all artifacts in the store.
        max_ranks: Ranks of a step at once; each takes a GPU where there is one.
    """

    core_hours: float | None = None
    gpu_hours: float | None = None
    store_gib: float | None = None
    max_ranks: int | None = None

    def replaced(self, value: Any, where: str) -> QuotaLimits:
        """Returns these limits, replaced by those of a JSON object.

        Raises:
            BadInput: it has another form; the message begins with ``where``.
        """
        _check_names(value, QuotaLimits, where)
        for name, limit in value.items():
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not (is_number and math.isfinite(limit) and limit > 0):
                raise BadInput(f"{where}: {name} is {limit!r}, expected a number above 0")
            if name == "max_ranks" and not isinstance(limit, int):
                raise BadInput(f"{where}: {name} is {limit!r}, expected a whole number")
        return replace(self, **value)

    def shares(self, used: Used, dag_id: str | None) -> list[QuotaShare]:
        """Returns the use of each limit, except of that at once."""
        amounts = (
            ("core_hours", "Core hours", self.core_hours, used.core_s / 3600),
            ("gpu_hours", "GPU hours", self.gpu_hours, used.gpu_s / 3600),
            ("store_gib", "GiB in the store", self.store_gib, used.size_bytes / 2**30),
        )
        return [
            QuotaShare(dag_id, name, what, amount, limit) for name, what, limit, amount in amounts if limit is not None
        ]


@dataclass(frozen=True)
class QuotaShare:
    """Use of a limit.

    Attributes:
        dag_id: The DAG whose limit it is; None for the team's.
        name: Name of the limit, such as ``gpu_hours``.
        what: The same in words.
    """

    dag_id: str | None
    name: str
    what: str
    used: float
    limit: float

    @property
    def percent(self) -> float:
        """Returns the used share in percent."""
        return 100 * self.used / self.limit

    @property
    def amount(self) -> str:
        """Writes what is used; less than 1 with three significant digits."""
        return f"{self.used:,.1f}" if self.used >= 1 else f"{self.used:.3g}"


@dataclass(frozen=True)
class Quotas:
    """Quotas of a connection.

    Attributes:
        team: Limits of all DAGs together.
        dag: Limits of each DAG.
        dags: Limits of single DAGs, which replace those of ``dag``.
        contact: Who may raise them.
    """

    team: QuotaLimits = QuotaLimits()
    dag: QuotaLimits = QuotaLimits()
    dags: Mapping[str, QuotaLimits] = field(default_factory=dict)
    contact: str = ""

    @classmethod
    def read(cls, value: Mapping[str, object], where: str) -> Self | None:
        """Reads a connection's field; None if it is empty.

        Raises:
            BadInput: the field has another form; the message begins with ``where``.
        """
        if not value:
            return None
        _check_names(value, cls, where)
        contact, dags = value.get("contact", ""), value.get("dags", {})
        if not isinstance(contact, str):
            raise BadInput(f"{where}: contact is {contact!r}, expected a text, such as 'platform@example.org'")
        if not isinstance(dags, Mapping):
            raise BadInput(f"{where}: dags is {dags!r}, expected an object with limits by DAG")
        dag = QuotaLimits().replaced(value.get("dag", {}), f"{where}: dag")
        single = {name: dag.replaced(limits, f"{where}: dags[{name!r}]") for name, limits in dags.items()}
        return cls(QuotaLimits().replaced(value.get("team", {}), f"{where}: team"), dag, single, contact)

    def of(self, dag_id: str) -> QuotaLimits:
        """Returns the limits of a DAG."""
        return self.dags.get(dag_id, self.dag)

    def shares(self, dag_id: str, used: Mapping[str, Used]) -> list[QuotaShare]:
        """Returns the use of the team's limits and of a DAG's, from the use of each DAG."""
        team = self.team.shares(sum(used.values(), Used()), None)
        return team + self.of(dag_id).shares(used.get(dag_id, Used()), dag_id)

    def check_ranks(self, spec: StepSpec, conn_id: str) -> None:
        """Raises BadInput if a step asks for more ranks than its DAG, or the team, may have at once."""
        ranks, dag_id = ranks_of(spec.params), spec.producer.dag_id
        for holder, most in ((f"DAG {dag_id!r}", self.of(dag_id).max_ranks), ("the team", self.team.max_ranks)):
            if most is not None and ranks > most:
                advice = self._advice("max_ranks", conn_id)
                raise QuotaExceeded(
                    "max_ranks",
                    most,
                    f"step {spec.step!r} asks for {ranks} ranks, a step of {holder} may have {most}; ask for fewer, "
                    f"or {advice}",
                )

    def check_use(self, spec: StepSpec, shares: Sequence[QuotaShare], conn_id: str) -> None:
        """Raises BadInput if a limit is used up that applies to a step."""
        for each in shares:
            if each.used >= each.limit and (each.name != "gpu_hours" or ranks_of(spec.params)):
                holder = "the team" if each.dag_id is None else f"DAG {each.dag_id!r}"
                during = "" if each.name == "store_gib" else f" in {DAYS} days"
                also = "; remove what is not needed with 'airflow hops gc', or " if not during else "; "
                advice = self._advice(each.name, conn_id)
                raise QuotaExceeded(
                    each.name,
                    each.limit,
                    f"{each.what} of {holder}: {each.amount} of {each.limit:,}{during}{also}{advice}",
                )

    def _advice(self, name: str, conn_id: str) -> str:
        contact = self.contact or "an administrator of Airflow"
        return f"{contact} may raise {name!r} in the field 'quotas' of connection {conn_id!r}"


def applies_to(spec: StepSpec) -> bool:
    """Returns whether quotas apply to a step: it makes an artifact, and does not change what is served."""
    return spec.output is not None and spec.output.kind not in _EXEMPT


def ranks_of(params: Mapping[str, Any]) -> int:
    """Returns the most ranks at once of a step with these parameters; 0 for a step that does not train."""
    training = params.get("training", params)  # nested for a search
    np = training.get("np", 0) if isinstance(training, Mapping) else 0
    most = max(np) if isinstance(np, list | tuple) else np
    if not isinstance(most, int):  # another step's parameter of this name
        return 0
    return most if training is params else max(most * params.get("parallel", 1), params.get("refit_np") or 0)


def _check_names(value: object, kind: type, where: str) -> None:
    """Raises BadInput unless a value is an object with names of a class's fields."""
    names = [each.name for each in fields(kind)]
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} is {value!r}, expected an object with {', '.join(names)}")
    for name in value:
        check_known(f"{where}: a name", name, names)
