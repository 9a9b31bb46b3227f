"""Places where the ranks of a training run; extensions add others (``airflow_hops.rank_places``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_hops.core.extensions import RANK_PLACES, load_all
from airflow_hops.core.names import check_known

LOCAL = "local"
"""Name of the place on the step's machine."""

GANG_VARIABLE = "HOPS_GANG"
"""Environment variable of a step with whose process those of its ranks are made: ``host``, ``port`` and ``secret``, as
JSON.

With a range of ranks, also the address ``chosen``, where the step writes the hosts of those that train, and
``more_timeout_s``, the seconds for which it waits for those above the least.
"""


@dataclass(frozen=True)
class RankConnection:
    """The connection that the field ``ranks_conn_id`` names.

    Attributes:
        conn_id: Its id.
        login: Its login, or None.
        port: Its port, or None.
        extra: Fields of its extra, without empty ones.
    """

    conn_id: str
    login: str | None = None
    port: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class RankPlace(ABC):
    """A place of ranks, registered as an entry point of the group ``airflow_hops.rank_places``, under its name.

    Both sides import it: Airflow's describes the place in the step's spec, the runtime's makes a launcher of ranks from
    this description.

    Attributes:
        launcher: ``module:function`` of the runtime's side, called as ``function(context, cpu_ranks=…, **options)``
            with the step's context, the number of ranks without a GPU, and the options of :meth:`where`. It returns a
            :class:`~airflow_hops.ml.training.gang.crew.RankLauncher`, and raises BadInput if the options are unusable.
        connection_types: Types of the connections that choose this place.
        takes_hosts: Whether the argument ``hosts`` chooses this place.
        step_launcher: Name of the step's launcher; empty for the task's own.
        member: If the step's launcher makes a process beside the step for each rank, the module that runs there: its
            ``main(folder)`` gets the folder of the process's files, and returns its exit code. The number of these
            processes is the option ``slots``, and they find the step by :data:`GANG_VARIABLE`. They serve one training,
            so that parallel trainings of one step, such as a search's trials, cannot run there.
    """

    launcher: ClassVar[str]
    connection_types: ClassVar[tuple[str, ...]] = ()
    takes_hosts: ClassVar[bool] = False
    step_launcher: ClassVar[str] = ""
    member: ClassVar[str] = ""

    @abstractmethod
    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes the place for a training, as JSON: ``kind``, the name of a place, and its options.

        Args:
            connection: Of one of ``connection_types``; None if only ``hosts`` was given.
            hosts: The argument ``hosts``; None if it was not given.
            ranks: All ranks of the training.

        Raises:
            BadInput: a field has the wrong type.
        """

    def step_options(self, conn_id: str, conf: Mapping[str, object]) -> dict[str, object]:
        """Returns keyword arguments of the step's launcher, for the connection's id and the task's Spark properties."""
        return {"conn_id": conn_id}


class LocalPlace(RankPlace):
    """The machine of the step; the option ``slots`` is the maximum number of ranks."""

    launcher = "airflow_hops.ml.training.gang.forked:local_ranks"

    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes this machine with all of its slots."""
        return {"kind": LOCAL}


def rank_places() -> Mapping[str, RankPlace]:
    """Returns the registered places by name."""
    return load_all(RANK_PLACES, RankPlace)  # type: ignore[type-abstract]


def place_of(where: Mapping[str, Any]) -> RankPlace:
    """Returns the place of a description, by its ``kind``. Raises BadInput if it is not registered."""
    places = rank_places()
    check_known("kind of the ranks' place", where.get("kind"), sorted(places))
    return places[where["kind"]]
