"""The API's document, from which the pages' client is typed."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_hops.web.openapi import document

REPOSITORY = Path(__file__).resolve().parents[2]


def test_openapi_document_matches_the_api() -> None:
    written = (REPOSITORY / "ui" / "openapi.json").read_text()
    assert document() == written, "run 'python -m airflow_hops.web.openapi > ui/openapi.json'"


def test_operation_ids_are_unique_and_answers_typed() -> None:
    written = json.loads((REPOSITORY / "ui" / "openapi.json").read_text())
    operations = [operation for path in written["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert sorted(set(names)) == sorted(names)
    for operation in operations:
        if "204" in operation["responses"]:
            continue  # what it says is that it is done
        (content,) = operation["responses"]["200"]["content"].values()
        assert content["schema"], operation["operationId"]
