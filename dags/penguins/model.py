"""The penguins model: a logistic regression of scaled numbers and of words, in one Pipeline that serves as a whole."""

from __future__ import annotations

from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from airflow_hops import TrainContext


def train(context: TrainContext) -> Pipeline:
    """Fits the Pipeline on raw features: a missing number is NaN, a missing word empty."""
    rows = context.table("train")
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    encoded = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include=object)),
    )
    return make_pipeline(encoded, LogisticRegression(max_iter=1000)).fit(rows.frame(), rows.labels)
