"""Look-ups by the model server's reader, in the runtime environment; prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from airflow_hops.extensions.feature_store.serving.online_store import ViewLookup, entity_key, open_online_store

VIEWS, FEATURES, ENTITIES = 5, 10, 10_000


def main(url: str, requests: int) -> None:
    store = open_online_store(url, "benchmark", 5.0)
    random = np.random.default_rng(3)
    features = tuple(f"value_{number}" for number in range(FEATURES))
    times, found = [], 0
    for _ in range(requests):
        numbers = random.integers(0, ENTITIES, 10)
        began = time.monotonic()
        keys = tuple(entity_key({"account_id": ("INT64", int(number))}) for number in numbers)
        rows = store.read([ViewLookup(f"view_{view}", features, keys) for view in range(VIEWS)])
        times.append(time.monotonic() - began)
        found += sum(len(values.values) for view in rows for values in view if values is not None)
    assert found == requests * 10 * VIEWS * FEATURES, found
    print(json.dumps({"median_s": float(np.median(times)), "p99_s": float(np.quantile(times, 0.99))}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
