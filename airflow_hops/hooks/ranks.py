"""Places of a training's ranks, from connections of type ``horovod``, ``spark`` and ``kubernetes``."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_hops.connections import find_connection, read_extra, similar_connections
from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.protocol import StepSpec

SPARK = "spark"
KUBERNETES = "kubernetes"
_OF_HOSTS = ("key_file", "config_file", "python", "address")
_TEXTS = ("hosts", *_OF_HOSTS)


class RanksHook(BaseHook):
    """Connection type ``horovod``: hosts for a training's ranks.

    Args:
        ranks_conn_id: The connection. Without hosts, it means this machine.
    """

    conn_name_attr = "ranks_conn_id"
    default_conn_name = "horovod_default"
    conn_type = "horovod"
    hook_name = "Horovod hosts"

    def __init__(self, ranks_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ranks_conn_id = ranks_conn_id

    def where(self, hosts: str | None = None) -> dict[str, Any]:
        """Returns the place of the ranks, for :func:`airflow_hops.ml.training.gang.where.rank_launcher`.

        Args:
            hosts: ``gpu-1:4,gpu-2:4``, instead of the connection's.

        Raises:
            BadInput: the connection does not exist, or a field has the wrong type.
        """
        connection = _connection(self.ranks_conn_id, self.conn_type)
        fields = read_extra(self.ranks_conn_id, connection)
        extra = {name: value for name, value in fields.items() if value not in (None, "")}
        for name in _TEXTS:
            if not isinstance(extra.get(name, ""), str):
                raise self._bad_field(name, extra[name], "a text")
        slots = extra.get("slots")
        if slots is not None and (isinstance(slots, bool) or not str(slots).isdigit() or int(slots) < 1):
            raise self._bad_field("slots", slots, "a number of ranks, 1 or more")
        named_here = hosts or extra.get("hosts")
        if not named_here:
            return {"kind": "local", "slots": int(slots) if slots is not None else None}
        return {
            "kind": "ssh",
            "hosts": named_here,
            "hosts_from": "argument 'hosts'" if hosts else f"connection {self.ranks_conn_id!r}, field 'hosts'",
            "user": connection.login or None,
            "port": connection.port,
            **{name: extra.get(name) for name in _OF_HOSTS},
        }

    def test_connection(self) -> tuple[bool, str]:
        """Checks the Python of every host, as a training would; returns whether all can run ranks, and the findings."""
        from airflow_hops.hooks.runtime import RuntimeHook

        try:
            spec = StepSpec("hosts", "airflow_hops.ml.training.gang.where:examine", params={"where": self.where()})
            hosts = RuntimeHook().run(spec, cache=False, on_line=lambda line: None).value
        except HopsError as error:
            return False, str(error)
        return True, "; ".join(hosts)

    def _bad_field(self, name: str, value: Any, expected: str) -> BadInput:
        return BadInput(f"connection {self.ranks_conn_id!r}: field {name!r} is {value!r}, expected {expected}")


def where_ranks_run(ranks_conn_id: str | None, hosts: str | None) -> dict[str, Any] | None:
    """Returns the place of the ranks, as :meth:`RanksHook.where`; None for all slots of this machine.

    Args:
        ranks_conn_id: Connection of type ``horovod``, ``spark`` or ``kubernetes``, or None.
        hosts: ``gpu-1:4,gpu-2:4``, instead of the connection's, or None.

    Raises:
        BadInput: the connection does not exist or has another type, or a field has the wrong type.
    """
    if not ranks_conn_id:
        return {"kind": "ssh", "hosts": hosts, "hosts_from": "argument 'hosts'"} if hosts else None
    kind = _connection(ranks_conn_id, RanksHook.conn_type, SPARK, KUBERNETES).conn_type
    if kind in (SPARK, KUBERNETES):
        if hosts:
            raise BadInput(
                f"hosts is {hosts!r}, but connection {ranks_conn_id!r} is of type {kind!r}, whose cluster decides on "
                "hosts; give only one of the two"
            )
        return {"kind": kind}
    return RanksHook(ranks_conn_id).where(hosts)


def _connection(conn_id: str, *types: str) -> Any:
    try:
        connection = find_connection(conn_id, *types)
    except BadInput as error:
        raise BadInput(f"ranks_conn_id: {error}") from None
    if connection is None:
        raise BadInput(
            f"ranks_conn_id: there is no connection {conn_id!r}; add one of type horovod (hosts), spark or kubernetes, "
            f"or set AIRFLOW_CONN_{conn_id.upper()} to a URI or a JSON object{similar_connections(conn_id)}"
        )
    return connection[0]
