"""Measures the network between the ranks of a training, and says what it allows for a model of a size."""

from __future__ import annotations

from argparse import Namespace

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.rank_places import place_of
from airflow_hops.hooks.ranks import where_ranks_run
from airflow_hops.hooks.runtime import RuntimeHook


def measure_network(args: Namespace) -> str:
    """Returns what was measured, for people; the arguments are those of ``airflow hops doctor``.

    Raises:
        BadInput: there are fewer than 2 ranks, or no such place for them.
        HopsError: a host cannot be reached, or a rank failed.
    """
    ranks, parameters = args.ranks, args.parameters
    if ranks < 2:
        raise BadInput(f"--ranks is {ranks}, expected 2 or more")
    hook = RuntimeHook(args.hops_conn_id)
    where = where_ranks_run(hook.settings.ranks_conn_id, args.hosts, ranks)
    if where is not None and place_of(where).step_launcher:
        raise BadInput(
            f"connection {args.hops_conn_id!r}: field 'ranks_conn_id' is {hook.settings.ranks_conn_id!r}, whose ranks "
            "are made with a training; expected a connection of hosts"
        )
    spec = StepSpec("network", "airflow_hops.ml.stages.train.network:run", params={"where": where, "ranks": ranks})
    measured = hook.run(spec, cache=False, on_line=lambda line: None).value
    exchange_s = measured["latency_s"] + 2 * (ranks - 1) / ranks * parameters * 4 / measured["bytes_per_s"]
    return (
        f"{ranks} ranks on {', '.join(measured['hosts'])}: {measured['latency_s'] * 1e3:.2g} ms for one number, "
        f"{measured['bytes_per_s'] / 1e9:.2g} GB/s; gradients of {parameters:,.0f} parameters take {exchange_s:.2g} s. "
        f"For 90% of the ranks' summed speed, a step must compute for {9 * exchange_s:.2g} s, less if both overlap"
    )
