"""The pages have words for every word of the contract that they show, and types of all that the API answers."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_hops.core.retraining import decision
from airflow_hops.core.retraining.conditions import Condition
from airflow_hops.core.retraining.decision import PERSON
from airflow_hops.core.rollout.decision import FindingVerdict
from airflow_hops.core.skew import Cause, SkewVerdict
from airflow_hops.web.openapi import document

UI = Path(__file__).parents[2] / "ui"
PAGES, OPENAPI = UI / "src" / "pages", UI / "openapi.json"


def _kinds(cls: type[Condition]) -> set[str]:
    return {cls.kind, *(kind for each in cls.__subclasses__() for kind in _kinds(each))} - {""}


# A refusal names the first part that holds, so that no group of conditions is named.
CONDITIONS = _kinds(Condition) - {"any_of", "all_of"}
LIMITS = {"monitor", "verdict", PERSON, *re.findall(r'limits\["(\w+)"\] = (?!\(\s*False)', inspect.getsource(decision))}
EVENTS = {
    "deployed",
    "canary",
    "step",
    "approved",
    "traffic",
    "promoted",
    "rolled_back",
    "left",
    "undeployed",
    "owners",
}
WORDS = [
    ("Skew/words.ts", "REFUSALS", CONDITIONS | LIMITS),
    ("Skew/words.ts", "CAUSES", set(get_args(Cause))),
    ("Skew/words.ts", "CAUSE_LABELS", set(get_args(Cause))),
    ("Skew/words.ts", "VERDICTS", set(get_args(SkewVerdict))),
    ("Skew/words.ts", "VERDICT_STATES", set(get_args(SkewVerdict))),
    ("Models/findings.ts", "STATES", set(get_args(FindingVerdict))),
    ("Models/words.ts", "TITLES", EVENTS),
]


@pytest.mark.parametrize(("file", "name", "words"), WORDS, ids=[f"{file}:{name}" for file, name, _ in WORDS])
def test_pages_have_words_for_the_contract(file: str, name: str, words: set[str]) -> None:
    (body,) = re.findall(rf"const {name}: [^=]*?(?:=> string>)? = {{(.*?)\n?}};", (PAGES / file).read_text(), re.DOTALL)
    assert words <= set(re.findall(r"(?:^|[\n,])\s*(\w+):\s", body))


def test_first_pipeline_shown_on_the_pages_can_be_parsed() -> None:
    (code,) = re.findall(r"const PIPELINE = `(.*?)`;", (UI / "src/shell/HowToStart.tsx").read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    assert made["statistics"].source == "/data/*.csv"


def test_openapi_document_matches_the_api() -> None:
    assert json.loads(document()) == json.loads(OPENAPI.read_text()), (
        "run 'python -m airflow_hops.web.openapi > ui/openapi.json'"
    )


def test_operation_ids_are_unique_and_answers_typed() -> None:
    written = json.loads(OPENAPI.read_text())
    operations = [operation for path in written["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert sorted(set(names)) == sorted(names)
    for operation in operations:
        if "204" in operation["responses"]:
            continue  # what it says is that it is done
        (content,) = operation["responses"]["200"]["content"].values()
        assert content["schema"], operation["operationId"]
