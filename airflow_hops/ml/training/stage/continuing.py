"""Finds the files of the champion that a training continues from, and whether they fit its examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Manifest
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_files import read_json
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import graph_key
from airflow_hops.ml.models.champion import TRAINED, Champion
from airflow_hops.ml.step.context import StepContext


def champion_of(
    context: StepContext, options: TrainingOptions, examples: Manifest | None, folder: Path | None
) -> Champion | None:
    """Returns the step's input ``champion``; None if there was no champion.

    Its ``problem`` says why the training cannot continue from it: a rank raises it when the function loads it.

    Args:
        context: The step.
        options: Options of the training.
        examples: Manifest of the training's examples; None without.
        folder: Local folder of these examples.
    """
    if options.continue_from is None or options.champion_version is None:
        return None
    artifact, store = context.input(COMPARED), context.store
    properties = ModelProperties.of(artifact)
    champion = Champion(
        options.continue_from, options.champion_version, artifact.fingerprint, properties.window, properties.framework
    )
    champion.inputs = None if properties.inputs is None else list(properties.inputs)
    try:
        _, manifest = store.find(artifact)
        folders = {entry.path.partition("/")[0] for entry in manifest.files}
        if TRAINED not in folders:
            raise BadInput(f"it was trained without continue_from, so its artifact {artifact.uri} has no {TRAINED!r}")
        champion.path = store.local(artifact, without=folders - {TRAINED}) / TRAINED
        for each in manifest.inputs.get("examples", ()):
            if examples is not None and folder is not None:
                _, previous = store.find(each)
                old, inputs = store.local(each, without=ExamplesProperties.of(previous).splits), champion.inputs or ()
                _compare(_facts(previous, old, inputs), _facts(examples, folder, inputs))
    except BadInput as error:
        champion.problem = str(error)
    return champion


def check_inputs(champion: Champion | None, summary: Mapping[str, Any]) -> None:
    """Raises BadInput if a training that continued has made a model with other inputs, or in another order."""
    inputs = (summary["model"] or {}).get("inputs")
    if champion is not None and "continued_from" in summary and inputs != champion.inputs:
        raise BadInput(
            f"the model takes {inputs}, and {champion}, which it continues from, {champion.inputs}; read the same "
            "columns in the same order"
        )


def _facts(examples: Manifest, folder: Path, inputs: Collection[str]) -> dict[str, object]:
    """Returns the facts about examples that must be those of the champion's, by name."""
    properties = ExamplesProperties.of(examples)
    facts: dict[str, Any] = {
        "kind of the examples": examples.kind,
        "key": properties.key,
    }  # the key decides which rows are held out
    for each in properties.target.all:
        facts[f"label {each.label!r}"] = [each.problem, each.classes]
    if not (folder / "features.json").exists():
        columns = properties.columns or {}
        return facts | {f"type of {name!r}": columns.get(name) for name in inputs}
    specs = FeatureSpecs.read(folder / "features.json")
    has_constants = (folder / "constants.json").exists()  # not of pictures
    constants = read_json(folder / "constants.json") if has_constants else {}
    return {
        **facts,
        **{f"features: {name!r}": dtype for name, dtype in specs.features.items()},
        **{f"output {name!r}": [n, spec.to_dict()] for n, (name, spec) in enumerate(specs.outputs.items())},
        **{f"{_CONSTANTS} {name!r}": figures for name, figures in constants.items()},
        "graph of the preprocessing function": graph_key(folder / "transform_graph"),
    }


_CONSTANTS = "constants of"


def _compare(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            texts = [str(facts.get(name))[:200] for facts in (old, new)]
            advice = "; give TransformOperator the same continue_from" if name.startswith(_CONSTANTS) else ""
            raise BadInput(f"its {name}: {texts[0]}, and here {texts[1]}{advice}")
