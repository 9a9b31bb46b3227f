"""Views of data in a notebook, like Facets (https://pair-code.github.io/facets/)."""

import json

import pandas as pd
from IPython.display import display

from airflow_hops.extensions.notebooks import pipeline


def overview(train_data: pd.DataFrame, test_data: pd.DataFrame | None = None) -> None:
    """Displays a table of features and their distributions for each frame, of shape ``[rows, columns]``."""
    for data in (train_data, test_data):
        if data is not None:
            display(pipeline.overview(data))


def dive(data: str | pd.DataFrame) -> None:
    """Displays rows as dots; ``data`` may be JSON as of ``frame.to_json(orient="records")``."""
    display(pipeline.dive(pd.DataFrame(json.loads(data)) if isinstance(data, str) else data))
