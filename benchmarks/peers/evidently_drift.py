"""The peer of the skew check: Evidently's DataDriftPreset on the same rows, in an environment of its own.

``python -m benchmarks.peers.evidently_drift drift <folder>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.worker import Work, perform, twice


def drift(folder: str) -> Work:
    """Both frames are there before the clock starts."""
    import pandas as pd
    from evidently import Report
    from evidently.presets import DataDriftPreset

    reference, current = (pd.read_parquet(Path(folder) / f"{name}.parquet") for name in ("reference", "current"))

    def check() -> Mapping[str, Any]:
        snapshot = Report([DataDriftPreset()]).run(current, reference)
        counted = snapshot.dict()["metrics"][0]["value"]
        return {"rows": len(current), "features": current.shape[1], "drifted": int(counted["count"])}

    return twice(check)


if __name__ == "__main__":
    perform({"drift": drift})
