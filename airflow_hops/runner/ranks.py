"""Finds the place of a training's ranks: from a connection, or from the argument ``hosts``."""

from __future__ import annotations

from typing import Any

from airflow_hops.core.errors import BadInput, ConnectionNotFound
from airflow_hops.core.training.rank_places import RankConnection, rank_places
from airflow_hops.runner.connections import find_connection, has_own_fields, read_extra, similar_connections


def where_ranks_run(ranks_conn_id: str | None, hosts: str | None, ranks: int = 0) -> dict[str, Any] | None:
    """Returns the place of the ranks: :meth:`.RankPlace.where`; None for this machine.

    Args:
        ranks_conn_id: Connection of a type that a place has, or None.
        hosts: ``gpu-1:4,gpu-2:4``, instead of the connection's, or None.
        ranks: All ranks of the training.

    Raises:
        BadInput: the connection does not exist or has another type, a field has the wrong type, or no place has hosts.
    """
    places = rank_places().values()
    there = f"there are {', '.join(sorted(rank_places()))}"
    if not ranks_conn_id:
        if not hosts:
            return None
        of_hosts = next((place for place in places if place.takes_hosts), None)
        if of_hosts is None:
            raise BadInput(
                f"hosts is {hosts!r}, but no installed distribution registers a place of ranks that takes hosts; "
                f"{there}"
            )
        return of_hosts.where(None, hosts, ranks)
    types = sorted({each for place in places for each in place.connection_types})
    if not types:
        raise BadInput(
            f"ranks_conn_id is {ranks_conn_id!r}, but no installed distribution registers a place of ranks that a "
            f"connection names; {there}"
        )
    connection = _connection(ranks_conn_id, types)
    place = next(place for place in places if connection.conn_type in place.connection_types)
    if hosts and not place.takes_hosts:
        raise BadInput(
            f"hosts is {hosts!r}, but connection {ranks_conn_id!r} is of type {connection.conn_type!r}, whose cluster "
            "decides on hosts; leave out hosts, or give a hops_conn_id without ranks_conn_id"
        )
    extra = read_extra(ranks_conn_id, connection) if has_own_fields(connection.conn_type) else connection.extra_dejson
    fields = {name: value for name, value in extra.items() if value not in (None, "")}
    return place.where(
        RankConnection(ranks_conn_id, connection.login or None, connection.port, fields), hosts or None, ranks
    )


def _connection(conn_id: str, types: list[str]) -> Any:
    try:
        connection = find_connection(conn_id, *types)
    except BadInput as error:
        raise BadInput(f"ranks_conn_id: {error}") from None
    if connection is None:
        raise ConnectionNotFound(conn_id).with_text(
            f"ranks_conn_id: there is no connection {conn_id!r}; add one of type {' or '.join(types)}, or set "
            f"AIRFLOW_CONN_{conn_id.upper()} to a URI or a JSON object{similar_connections(conn_id)}"
        )
    return connection[0]
