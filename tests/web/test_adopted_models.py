"""A model that was adopted, and that only its endpoint serves, through the API."""

from __future__ import annotations

import pytest

from airflow_hops.core.artifacts.properties import ENDPOINT, ModelProperties
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from web.conftest import Api

pytestmark = pytest.mark.runtime

PATH = "/api/dags/pages_training/models/pages_model"
ADDRESS = "https://models.example.com"


def test_only_a_model_without_versions_of_ours_is_external(api: Api) -> None:
    properties = ModelProperties(format=ENDPOINT).to_dict()
    adopted = api.write("model", {"endpoint/endpoint.json": "{}"}, "adopt_model", api.other, properties=properties)
    served = ServedVersion.of(adopted, 1, ADDRESS, 100)
    facts = {"traffic": {1: 100}, "model": adopted.uri, "fingerprint": adopted.fingerprint}
    record = ModelRecord(champion=served).after("deployed", 1, "adopted: version 'v1'", **facts)
    try:
        write_record(api.store, "pages_model", record)
        live = api.get(f"{PATH}/live").json()
        assert (live["external"], live["address"], live["problem"], live["versions"]) == (True, ADDRESS, None, [])
        (version,) = api.get(f"{PATH}/versions").json()["entries"]
        assert (version["metrics"], version["unmeasured"]) == ({}, None), "nothing is missing of what nobody trained"
        logs = api.get(f"{PATH}/logs")
        assert logs.status_code == 422 and f"{ADDRESS} serves model 'pages_model'" in logs.json()["detail"]
        write_record(api.store, "pages_model", record.after("canary", 2, "a successor", traffic={1: 80, 2: 20}))
        live = api.get(f"{PATH}/live").json()
        assert not live["external"] and "serving_rest_port" in live["problem"]
        assert "serving_rest_port" in api.get(f"{PATH}/logs").json()["detail"]
    finally:
        api.store.remove_text(record_uri(api.store, "pages_model"))
