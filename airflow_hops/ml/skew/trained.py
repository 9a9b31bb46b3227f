"""Training data of a model, the reference for comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties, StatisticsProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.distances.detect import side_of
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers.artifact_files import example_files, files_below
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.schema import SCHEMA_FILE, load_schema
from airflow_hops.ml.schema.diff import flat_features
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool
from airflow_hops.ml.statistics import STATISTICS_FILE
from airflow_hops.ml.statistics.summary import features_by_name, type_name

if TYPE_CHECKING:
    from airflow_hops.ml.metrics.scoring import ScoredModel


@dataclass(frozen=True)
class Trained:
    """A model and its training data.

    Attributes:
        store: Store of the model and its training data.
        split: The split that rows are compared with.
        origin: Name of the training data's statistics in artifacts.
        reference: Statistics of the split, with a sample of its rows.
        time: Column of the rows' times; None if there is none.
        schema: The schema; only features that the model takes have skew comparators.
        types: TFDV's type (INT, FLOAT, STRING) by name of the compared features.
        served: The model as a server loads it, if it is loaded already.
    """

    store: ArtifactStore
    split: str
    model: Artifact
    origin: SkewReference
    reference: Side
    schema: Any
    types: Mapping[str, str]
    time: str | None = None
    served: ScoredModel | None = None

    @classmethod
    def read(
        cls,
        store: ArtifactStore,
        split: str,
        model: Artifact,
        stored: Artifact,
        schema: Artifact,
        origin: SkewReference,
        served: ScoredModel | None = None,
    ) -> Trained:
        """Reads the statistics and schema of a model from the store.

        Raises:
            BadInput: the model was trained on other statistics.
        """
        properties = ModelProperties.of(model)
        trained_on = properties.statistics_fingerprint
        if trained_on is not None and trained_on != stored.fingerprint:
            raise BadInput(
                f"{stored.uri}: these are not the statistics that version {origin.version} of {origin.model!r} "
                f"was trained on (fingerprint {stored.fingerprint[:12]}…, expected {trained_on[:12]}…): their task has "
                "run again since. Deploy a model that was trained on the new ones"
            )
        reference = side_of(store.local(stored) / split / STATISTICS_FILE)
        loaded = load_schema(store.local(schema) / SCHEMA_FILE)
        known, types = features_by_name(reference.statistics), {}
        for name, feature in flat_features(loaded.feature):
            if name != feature.name or (properties.features and name not in properties.features):
                feature.ClearField("skew_comparator")  # the server never sees it: models take no fields of objects
            elif feature.HasField("skew_comparator") and name in known:
                types[name] = type_name(known[name])
        time = StatisticsProperties.of(stored).time
        return cls(store, split, model, origin, reference, loaded, types, time, served)

    def model_served(self) -> ScoredModel:
        """Loads the model as a server does; raises ``BadInput`` if it was deleted, or does not load."""
        from airflow_hops.ml.metrics.scoring import ScoredModel

        return self.served or ScoredModel(model_folder(self.store, self.model))

    def rows(self, pool: Pool = IN_PROCESS) -> FeatureRows:
        """Returns the rows that the statistics were computed from, to be read by ``pool``.

        Raises:
            BadInput: the examples are not known, or were deleted.
        """
        uri = self.origin.statistics
        examples = self.store.manifest(uri).inputs.get("examples")
        if not examples:
            raise BadInput(f"{uri}: the manifest names no examples that the statistics were computed from")
        return self.rows_of(examples[0], pool)

    def rows_of(self, examples: Artifact, pool: Pool = IN_PROCESS) -> FeatureRows:
        """Returns the rows of the split in other examples; raises ``BadInput`` if the split is missing."""
        if pool.reads_store:
            files = files_below(self.store, examples, [self.split])[self.split]
        else:
            files = [*example_files(self.store.local(examples), self.split)]
        return FeatureRows([RowsFile.stored(file) for file in files], "", pool)
