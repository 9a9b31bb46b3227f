"""Objects that a deployment writes to KServe, by an API that only holds InferenceServices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from http_answers import HttpRequest, answering

from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.kubernetes.ml.kserve import CanaryServices, InferenceServices, KServeTraffic
from airflow_hops.ml.model_server.version_folders import version_folders

API = "/apis/serving.kserve.io/v1beta1/namespaces/models/inferenceservices"


def merge(value: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    for name, part in change.items():
        if isinstance(part, dict) and isinstance(value.get(name), dict):
            merge(value[name], part)
        elif part is None:
            value.pop(name, None)
        else:
            value[name] = part
    return value


@pytest.fixture
def objects() -> dict[str, Any]:
    return {}


@pytest.fixture
def url(objects: dict[str, Any]) -> Iterator[str]:
    """Address of the API; that of a namespace that does not exist answers like Kubernetes without KServe."""

    def answer(request: HttpRequest) -> tuple[int, Any]:
        path, _, query = request.path.partition("?")
        body, name = request.json(), path.removeprefix(API).strip("/")
        if not path.startswith(API):
            return 404, {"message": "404 page not found"}
        if request.headers["Authorization"] != "Bearer admin":
            return 403, {"message": 'User "guest" cannot list'}
        if request.method == "POST":
            objects[body["metadata"]["name"]] = body
        elif name and name not in objects:
            return 404, {"message": "not found"}
        elif request.method == "PATCH":
            value = merge(copy.deepcopy(objects[name]), body)
            if "Dropped" in name:  # what the custom resource does not know
                value["spec"].pop("canary", None)
            if query != "dryRun=All":
                objects[name] = value
            return 200, value
        elif request.method == "DELETE":
            del objects[name]
        else:
            return 200, objects[name] if name else {"items": list(objects.values())}
        return 200, {}

    with answering(answer) as address:
        yield address


@pytest.fixture
def services(url: str, tmp_path: Path) -> Callable[..., InferenceServices]:
    def make(kind: type[InferenceServices] = InferenceServices, **changes: str) -> InferenceServices:
        values = {
            "serving_kubernetes_url": url,
            "serving_kubernetes_token": "admin",
            "serving_namespace": "models",
            "serving_predictor": '{"serviceAccountName": "reader", "model": {"runtime": "airflow-hops"}}',
            "serving_base_path": str(tmp_path / "models"),
            "serving_server_base_path": "pvc://claim/models",
            **changes,
        }
        store = ArtifactStore(str(tmp_path / "store"))
        places = SharedPlaces.of(values, store)
        folders = version_folders(places.base_path, places.storage_options, own_folder=True)
        return kind(values, places, folders, store.root)

    return make


def serve(services: InferenceServices, *versions: int, name: str = "flights") -> None:
    """Makes these versions of a model the served ones; none removes it."""

    def change(message: Any) -> None:
        models = message.model_config_list.config
        others = [each for each in models if each.name != name]
        del models[:]
        models.extend(others)
        if versions:
            model = models.add(name=name, base_path=f"pvc://claim/models/{name}", model_platform="tensorflow")
            model.model_version_policy.specific.versions[:] = versions

    services.change(change)


def test_canary_is_promoted_and_rolled_back(services: Any, objects: dict[str, Any]) -> None:
    kserve = services()

    def predictor() -> tuple[str, int | None]:
        spec = objects["flights"]["spec"]["predictor"]
        assert spec["serviceAccountName"] == "reader" and spec["model"]["runtime"] == "airflow-hops"
        assert (spec["model"]["modelFormat"], spec["model"]["protocolVersion"]) == ({"name": "tensorflow"}, "grpc-v1")
        return spec["model"]["storageUri"].rpartition("/")[2], spec.get("canaryTrafficPercent")

    serve(kserve, 1)
    assert (predictor(), kserve.shares("flights")) == (("1", None), {1: 100})
    assert objects["flights"]["metadata"]["annotations"]["serving.kserve.io/enable-tag-routing"] == "true"
    serve(kserve, 1, 2)
    assert (predictor(), kserve.shares("flights")) == (("2", 0), {1: 100})
    kserve.set_shares("flights", {1: 75, 2: 25})
    assert (predictor(), kserve.shares("flights")) == (("2", 25), {1: 75, 2: 25})
    kserve.set_shares("flights", {2: 100})
    serve(kserve, 2)
    assert (predictor(), kserve.shares("flights")) == (("2", None), {2: 100})
    serve(kserve, 2, 3)
    serve(kserve, 2)  # the canary is rolled back
    assert (predictor(), kserve.shares("flights")) == (("2", 0), {2: 100})
    serve(kserve, 1, 2)  # then the champion: a new revision of an older version
    assert predictor() == ("1", 0)
    kserve.set_shares("flights", {1: 100})
    serve(kserve, 1)
    assert (predictor(), kserve.shares("flights")) == (("1", None), {1: 100})
    assert [list(m.model_version_policy.specific.versions) for m in kserve.read().model_config_list.config] == [[1]]
    serve(kserve)
    assert objects == {} and kserve.shares("flights") == {}


def test_canary_without_knative_is_promoted_and_rolled_back(services: Any, objects: dict[str, Any]) -> None:
    kserve = services(CanaryServices)

    def spec() -> tuple[tuple[str, str], list[tuple[str, str, int]]]:
        """Name and version of the champion; of the canary with its share."""
        value = objects["flights"]["spec"]
        assert objects["flights"]["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
        assert value["predictor"]["serviceAccountName"] == "reader"
        assert "canaryTrafficPercent" not in value["predictor"]

        def named(predictor: dict[str, Any]) -> tuple[str, str]:
            return predictor["name"], predictor["model"]["storageUri"].rpartition("/")[2]

        canaries = [(*named(each["predictor"]), each["trafficPercent"]) for each in value.get("canary", [])]
        return named(value["predictor"]), canaries

    serve(kserve, 1)
    assert (spec(), kserve.shares("flights")) == ((("blue", "1"), []), {1: 100})
    serve(kserve, 1, 2)
    assert (spec(), kserve.shares("flights")) == ((("blue", "1"), [("green", "2", 0)]), {1: 100})
    kserve.set_shares("flights", {1: 80, 2: 20})
    assert (spec(), kserve.shares("flights")) == ((("blue", "1"), [("green", "2", 20)]), {1: 80, 2: 20})
    for _ in range(2):  # a retry changes nothing
        kserve.set_shares("flights", {2: 100})
        serve(kserve, 2)
        assert (spec(), kserve.shares("flights")) == ((("green", "2"), []), {2: 100})
    serve(kserve, 2, 3)
    assert spec() == (("green", "2"), [("blue", "3", 0)])
    serve(kserve, 2)  # the canary is rolled back
    assert (spec(), kserve.shares("flights")) == ((("green", "2"), []), {2: 100})
    serve(kserve, 1, 2)  # then the champion
    kserve.set_shares("flights", {1: 100})
    serve(kserve, 1)
    assert (spec(), kserve.shares("flights")) == ((("blue", "1"), []), {1: 100})
    serve(kserve, 1, 2)
    del objects["flights"]["spec"]["canary"]
    assert kserve.shares("flights") == {}, "somebody removed the canary"


def test_kserve_without_the_field_is_refused(services: Any, objects: dict[str, Any]) -> None:
    kserve = services(CanaryServices)
    serve(kserve, 1, name="Dropped")
    original = copy.deepcopy(objects)
    with pytest.raises(BadInput, match=r"does not know spec\.canary, which it has since 0\.20"):
        serve(kserve, 1, 2, name="Dropped")
    assert objects == original


def test_foreign_objects_and_invalid_fields_are_bad_input(services: Any, objects: dict[str, Any]) -> None:
    objects["flights"] = {"metadata": {"name": "flights"}, "spec": {"predictor": {}}}
    with pytest.raises(BadInput, match="belongs to someone else, with the store None; expected 'file://"):
        serve(services(), 1)
    for name in ("a" * 47, "Flights_2", "2flights"):
        with pytest.raises(BadInput, match=rf"'{name}' \(\d+ characters\), which KServe does not accept"):
            services().check_name(name)
    with pytest.raises(BadInput, match=r"is the local folder .* which pods do not see; expected its address"):
        services(serving_server_base_path="")
    with pytest.raises(BadInput, match="no address of Kubernetes"):
        services(serving_kubernetes_url="")
    with pytest.raises(BadInput, match="a role with the verbs get, list, create, patch and delete"):
        services(serving_kubernetes_token="guest").read()
    with pytest.raises(BadInput, match="does not know the kind InferenceService, v1beta1: install KServe"):
        services(serving_namespace="none").read()


def test_reason_of_kserve_is_given(services: Any, objects: dict[str, Any]) -> None:
    kserve = services()
    serve(kserve, 1)
    assert kserve.why_not_available("flights") == "InferenceService 'flights': no status yet"
    conditions = [{"type": "Ready", "status": "False", "message": "no node"}]
    objects["flights"]["status"] = {"conditions": conditions}
    assert kserve.why_not_available("flights").endswith("no node")
    objects["flights"]["status"]["modelStatus"] = {"lastFailureInfo": {"message": "no graph"}}
    assert kserve.why_not_available("flights").endswith("no graph")


def test_shares_of_gateway_and_object_are_set_together(services: Any, objects: dict[str, Any]) -> None:
    class Gateway:
        shares: ClassVar[dict[int, int]] = {}

        def read(self, model_name: str) -> dict[int, int]:
            return self.shares

        def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
            self.shares = dict(percents or {})

    kserve, gateway = services(), Gateway()
    traffic = KServeTraffic(gateway, kserve)
    serve(kserve, 1)
    serve(kserve, 1, 2)
    traffic.set("flights", {1: 80, 2: 20})
    assert traffic.read("flights") == gateway.shares == kserve.shares("flights") == {1: 80, 2: 20}
    kserve.set_shares("flights", {1: 90, 2: 10})
    assert traffic.read("flights") == {}, "they differ: the next comparison sets both"
