"""Kinds of model servers that connections name; extensions add others (``airflow_hops.model_servers``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_hops.core.extensions import MODEL_SERVERS, load_all
from airflow_hops.core.names import check_known

BUNDLED = "bundled"
"""Name of the kind of this package's server."""


@dataclass(frozen=True)
class ModelServerKind:
    """A kind of model server, registered as an entry point of the group ``airflow_hops.model_servers``.

    The entry point's name is the connection's field ``kind``. Both sides import it.

    Attributes:
        control: ``module:class`` of the runtime's side, a subclass of
            :class:`~airflow_hops.ml.model_server.server.ModelServer`.
        is_bundled: Whether clients ask this package's server, alone or as a gateway to others, which splits traffic,
            counts requests by version, and captures them.
        formats: Names of the model formats that it serves; None for all.
        services: ``module:function`` of Airflow's side, called with the ``serving_*`` entries of a connection; returns
            further entries for a step, such as credentials; empty for none.
        has_process: Whether a server runs. Without one, models and captured rows are in the artifact store by default,
            and nobody asks whether it answers.
    """

    control: str
    is_bundled: bool = True
    formats: tuple[str, ...] | None = None
    services: str = ""
    has_process: bool = True


BUNDLED_SERVER = ModelServerKind("airflow_hops.ml.model_server.server:ModelServer")
TENSORFLOW_MODEL_SERVER = ModelServerKind(
    "airflow_hops.ml.model_server.server:TensorFlowModelServer",
    is_bundled=False,
    formats=("SavedModel",),
)


def kind_name(services: Mapping[str, str]) -> str:
    """Returns the kind of a connection's server. Raises BadInput if it is not registered."""
    name = services.get("serving_kind") or BUNDLED
    check_known("connection field 'serving_kind'", name, sorted(model_server_kinds()))
    return name


def model_server_kinds() -> Mapping[str, ModelServerKind]:
    """Returns the registered kinds by name."""
    return load_all(MODEL_SERVERS, ModelServerKind)
