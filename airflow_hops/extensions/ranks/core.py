"""Places of ranks on other machines: hosts that are reached over SSH, executors of Spark, and pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.training.rank_places import LOCAL, RankConnection, RankPlace

_OF_HOSTS = ("key_file", "config_file", "python", "address")


class SshPlace(RankPlace):
    """Hosts that are reached over SSH; this machine, if the connection names none.

    Options: ``hosts``, ``hosts_from`` (source of the hosts, for errors), ``user``, ``port``, ``key_file``,
    ``config_file``, ``python`` and ``address``. Missing or None options have their defaults.
    """

    launcher = "airflow_hops.extensions.ranks.ml.ssh:ssh_ranks"
    connection_types = ("horovod",)
    takes_hosts = True

    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes the hosts, those of the argument first. Raises BadInput if a field has the wrong type."""
        if connection is None:
            return {"kind": "ssh", "hosts": hosts, "hosts_from": "argument 'hosts'"}
        conn_id, extra = connection.conn_id, connection.extra
        for name in ("hosts", *_OF_HOSTS):
            if not isinstance(extra.get(name, ""), str):
                raise _bad_field(conn_id, name, extra[name], "a text")
        slots = extra.get("slots")
        if slots is not None and (isinstance(slots, bool) or not str(slots).isdigit() or int(slots) < 1):
            raise _bad_field(conn_id, "slots", slots, "a number of ranks, 1 or more")
        named = hosts or extra.get("hosts")
        if not named:
            return {"kind": LOCAL, "slots": int(slots) if slots is not None else None}
        return {
            "kind": "ssh",
            "hosts": named,
            "hosts_from": "argument 'hosts'" if hosts else f"connection {conn_id!r}, field 'hosts'",
            "user": connection.login,
            "port": connection.port,
            **{name: extra.get(name) for name in _OF_HOSTS},
        }


def _bad_field(conn_id: str, name: str, value: object, expected: str) -> BadInput:
    return ConnectionFieldError(name, conn_id=conn_id).with_text(
        f"connection {conn_id!r}: field {name!r} is {value!r}, expected {expected}"
    )


class SparkPlace(RankPlace):
    """Executors of Spark, in a barrier job of the step's application."""

    launcher = "airflow_hops.extensions.ranks.ml.spark:spark_ranks"
    connection_types = ("spark",)
    step_launcher = "spark"

    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes the executors; Spark decides on their hosts."""
        return {"kind": "spark"}

    def step_options(self, conn_id: str, conf: Mapping[str, object]) -> dict[str, object]:
        """Returns options for a fixed set of executors, which a barrier job needs."""
        return {"conn_id": conn_id, "conf": {"spark.dynamicAllocation.enabled": "false", **conf}}


class PodPlace(RankPlace):
    """Pods beside the step's; the option ``slots`` is their number."""

    launcher = "airflow_hops.extensions.ranks.ml.pods:pod_ranks"
    connection_types = ("kubernetes",)
    step_launcher = "kubernetes"
    member = "airflow_hops.extensions.ranks.ml.pods"

    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes a pod for each rank."""
        return {"kind": "kubernetes", "slots": ranks}
