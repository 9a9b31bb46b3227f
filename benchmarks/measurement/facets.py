"""Facets Overview, as TFDV shows it: the element that Facets' authors have built, over the statistics as protos.

Runs in the runtime environment, ``python -m benchmarks.measurement.facets <statistics> <element> <polyfill> <out>``.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path

from tensorflow_metadata.proto.v0.statistics_pb2 import DatasetFeatureStatisticsList

from airflow_hops.ml.statistics import STATISTICS_FILE


def write_page(statistics: Path, element: Path, polyfill: Path, out: Path) -> None:
    """Writes a page with everything in it.

    Args:
        statistics: Folder of a statistics artifact.
        element: Facets' ``facets-jupyter.html``.
        polyfill: ``webcomponents-lite.min.js`` of web components 0.x: browsers have them no more.
        out: The page.
    """
    both = DatasetFeatureStatisticsList()
    for path in sorted(statistics.glob(f"*/{STATISTICS_FILE}"), reverse=True):
        (dataset,) = DatasetFeatureStatisticsList.FromString(path.read_bytes()).datasets
        dataset.name = path.parent.name
        for feature in dataset.features:
            # Facets knows names only.
            feature.name = ".".join(feature.path.step)
        both.datasets.append(dataset)
    proto = base64.b64encode(both.SerializeToString()).decode()
    out.write_text(
        f'<!doctype html><meta charset="utf-8"><script>{polyfill.read_text()}</script>'
        f'{element.read_text()}<facets-overview proto-input="{proto}"></facets-overview>'
    )


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("statistics", "element", "polyfill", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    write_page(given.statistics, given.element, given.polyfill, given.out)


if __name__ == "__main__":
    main()
