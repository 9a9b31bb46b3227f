"""Steps that leave the artifact of an operator behind, without its work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.properties import (
    BlessingProperties,
    DeploymentProperties,
    ExamplesProperties,
    ModelProperties,
)
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.feature_store.core.stored_features import (
    FeatureDefinitions,
    FeatureDefinitionsProperties,
    MaterializationProperties,
    StoredFeature,
    StoredFeatures,
    ViewDefinition,
)

WINDOW = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")
EVALUATION = json.loads((Path(__file__).parents[3] / "written_before" / "evaluation.json").read_text())
VIEW = ViewDefinition("delays", "FeatureView", ("carrier_id",), {"mean_delay": "Float32"}, 3600.0, online=True)
STORED = StoredFeatures(
    "flights", "f" * 64, {"delay": StoredFeature("delays", "mean_delay", "Float32", {"carrier": "carrier_id"})}
)
TRAINING = {"params": {"lr": 1}, "epochs": [{"epoch": 1, "loss": 0.5}], "seconds": {"total": 1.0}}
EXAMPLES = ExamplesProperties("late", "id", "at", WINDOW, ("train", "eval"), "binary").to_dict()
MODEL = ModelProperties("serving_default", "model:train", 1, features=("delay",), inputs=("delay",), label="late")
LEFT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "feature_definitions": (
        {"definitions.json": FeatureDefinitions("flights", views=(VIEW,)).to_dict()},
        FeatureDefinitionsProperties("flights").to_dict(),
    ),
    "materialization": ({}, MaterializationProperties(WINDOW, {"delays": "loaded"}).to_dict()),
    "examples": ({}, {**EXAMPLES, "stored_features": STORED.to_dict()}),
    "model": ({"training.json": TRAINING}, {**MODEL.to_dict(), "problem": "binary"}),
    "evaluation": ({"evaluation.json": EVALUATION}, BlessingProperties(True).to_dict()),
    "infra_blessing": ({}, BlessingProperties(True).to_dict()),
    "deployment": ({}, DeploymentProperties("pages_served", 1, "champion", 1, {"1": 100}).to_dict()),
}
"""Files and properties by kind."""


def leave(context: Any, **_: Any) -> Any:
    """Leaves the artifact of an operator that succeeded."""
    assert context.spec.output is not None
    files, properties = LEFT[context.spec.output.kind]
    with context.output() as writer:
        for name, content in files.items():
            (writer.path / name).write_text(json.dumps(content))
        return writer.commit(properties=properties)


def refuse(context: Any, **_: Any) -> Any:
    """Leaves an evaluation that does not bless the model."""
    with context.output() as writer:
        (writer.path / "evaluation.json").write_text(json.dumps({**EVALUATION, "blessed": False, "reasons": ["worse"]}))
        return writer.commit(properties=BlessingProperties(False, ("worse",)).to_dict())


def fail(context: Any, **_: Any) -> Any:
    """Leaves nothing."""
    raise BadInput("this step fails")
