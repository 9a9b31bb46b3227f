"""Views of data in a notebook, after Facets (https://pair-code.github.io/facets/)."""

import json

import pandas as pd
from IPython.display import display

from airflow_hops.hops import pipeline


def overview(train_data: pd.DataFrame, test_data: pd.DataFrame | None = None) -> None:
    """Shows a table of features and their distributions, one for each frame.

    Args:
        train_data: Shape ``[rows, columns]``.
        test_data: The same of another data set.
    """
    for data in (train_data, test_data):
        if data is not None:
            display(pipeline.overview(data))


def dive(data: str | pd.DataFrame) -> None:
    """Shows rows as dots.

    Args:
        data: A frame; or its rows as JSON, as ``frame.to_json(orient="records")`` makes them.
    """
    display(pipeline.dive(pd.DataFrame(json.loads(data)) if isinstance(data, str) else data))
