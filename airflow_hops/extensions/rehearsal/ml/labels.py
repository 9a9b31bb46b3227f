"""Changes of the world that no feature shows: labels that flip, found by the performance alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.extensions.rehearsal.core.rehearsal import RehearsalOptions, RehearsedFault
from airflow_hops.extensions.rehearsal.ml.effects import Effects
from airflow_hops.extensions.rehearsal.ml.faults import SHARE, Fault
from airflow_hops.extensions.rehearsal.ml.said import Monitor
from airflow_hops.extensions.rehearsal.ml.search import FaultFound, first_found
from airflow_hops.extensions.rehearsal.ml.windows import WindowPool


def rehearse_labels(
    effects: Effects, monitor: Monitor, policy: RetrainingPolicy, options: RehearsalOptions, pool: WindowPool
) -> list[RehearsedFault]:
    """Returns what is found of flipped labels in windows with as many labelled rows as those of the pool."""
    if effects.labelled is None or not effects.metric:
        return []
    words = "{size} of the labels " + ("are those of other rows" if effects.problem == REGRESSION else "flip")
    fault = Fault("labels", (), words, SHARE, lambda target, size: {})
    watching = next((leaf for leaf in policy.when.leaves() if isinstance(leaf, Performance)), None)
    rows = int(np.median([window.rows for window in pool.windows]))
    places = list[int]()
    for number in range(options.tries if watching else 0):

        def found(place: int, number: int = number) -> bool:
            return monitor.is_worse(effects.measured(watching, rows, fault.sizes[place], number))

        places.append(first_found(found, len(fault.sizes), int(np.median(places)) if places else 8))
    result = FaultFound(fault, np.array(places or [len(fault.sizes)]), (), (), np.array([len(fault.sizes)]))
    smallest, interval = result.smallest()
    size = fault.sizes[-1] if smallest is None else smallest
    figures = effects.measured(watching, rows, size, options.tries)
    loss = None if figures is None else -(figures.versions[0].drop or {}).get(effects.metric, (0.0, 0.0, 0.0))[0]
    reported = RehearsedFault(
        "", "labels", SHARE, smallest, list(interval), fault.sizes[-1], fault.described(size), loss=loss
    )
    if watching is None:
        return [replace(reported, why="the policy does not watch the performance")]
    measured = [effects.measured(watching, rows, size, number) for number in range(len(pool.windows))]
    decided = monitor.of_labels([each for each in measured if each is not None])
    retraining = decided.retraining and smallest is not None
    after = decided.after if smallest is not None else None
    return [
        replace(
            reported, curve=result.curve(), after=after, verdict="performance" * retraining, retraining=retraining,
            why=decided.why,
        )
    ]  # fmt: skip
