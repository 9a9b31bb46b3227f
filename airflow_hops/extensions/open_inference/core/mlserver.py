"""The kind ``mlserver`` of model servers: the bundled server as a gateway to MLServer."""

from airflow_hops.core.serving_api.server_kinds import ModelServerKind

MLSERVER = ModelServerKind("airflow_hops.extensions.open_inference.ml.mlserver:MLServer", formats=("scikit-learn",))
