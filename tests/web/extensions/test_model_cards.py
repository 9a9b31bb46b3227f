"""Model cards through the API."""

from __future__ import annotations

import re

import pytest

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from web.conftest import Api

pytestmark = pytest.mark.runtime

PATH = "/api/dags/pages_training/models/pages_model/versions"


def test_version_has_a_card(api: Api) -> None:
    schema = api.write("schema", {"schema.pbtxt": ""}, "schema")
    properties = ModelProperties(features=("distance",), label="late", schema=schema.uri).to_dict()
    facts = {"inputs": {"schema": schema}, "properties": properties}
    model = api.write("model", {"training.json": "{}"}, "train", api.other, **facts)
    record = ModelRecord(ServedVersion.of(model, 2, "/serving/2", 100))
    record = record.after("deployed", 2, "a test", traffic={2: 100}, by={"dag_id": "pages_training"})
    write_record(api.store, "pages_model", record)
    try:
        card = api.get(f"{PATH}/2/card", "viewer")
        assert card.headers["content-disposition"] == "attachment; filename*=UTF-8''pages_model%20v2%20model%20card.md"
        assert card.headers["content-type"] == "text/markdown; charset=utf-8"
        titles = re.findall(r"^## (.*)", card.text, re.MULTILINE)
        assert titles[:2] == ["Model details", "Intended use"]
        assert titles[-2:] == ["What was decided", "Caveats"]
        assert "| Evaluation | none that is known |" in card.text
        assert api.get(f"{PATH}/9/card").status_code == 404
        refused = api.get(f"{PATH}/2/card", "only:pages_training,pages_other")
        assert (refused.status_code, refused.json()["detail"]) == (403, "the card mentions 1 DAGs that you may not see")
        assert "distance" in api.get(f"{PATH}/2/card", "only:pages_training,pages,pages_other").text
    finally:
        api.store.remove_text(record_uri(api.store, "pages_model"))
