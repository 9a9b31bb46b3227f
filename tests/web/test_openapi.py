"""The API's document, from which the pages' client is typed."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_hops.web.openapi import document

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_document_of_the_pages_is_the_apis() -> None:
    written = (REPOSITORY / "ui" / "openapi.json").read_text()
    assert document() == written, "run 'python -m airflow_hops.web.openapi > ui/openapi.json'"


def test_operations_are_named_once_and_answers_are_typed() -> None:
    written = json.loads((REPOSITORY / "ui" / "openapi.json").read_text())
    operations = [operation for path in written["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert sorted(set(names)) == sorted(names)
    for operation in operations:
        if "204" in operation["responses"]:
            continue  # what it says is that it is done
        (content,) = operation["responses"]["200"]["content"].values()
        assert content["schema"], operation["operationId"]
