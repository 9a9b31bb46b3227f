"""Checks of proposals and differences against TFDV itself: steps of the runtime environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.schema import diff_schemas, infer_schema, load_schema, parse_schema, propose_schema, to_text

ROWS = 200


def _frame(**changed: Any) -> pd.DataFrame:
    """Rows of the old kind, with some columns changed, added or (None) left out."""
    random = np.random.default_rng(3)
    columns = {
        "carrier": np.array(["AA", "B6"] * (ROWS // 2)),
        "gate": np.where(np.arange(ROWS) % 5 == 0, None, "A1"),
        "temp": random.uniform(0, 90, ROWS),
        "seats": np.arange(ROWS) % 5,
        "late": np.arange(ROWS) % 2,
    }
    return pd.DataFrame({name: value for name, value in {**columns, **changed}.items() if value is not None})


NEW_DATA: dict[str, dict[str, Any]] = {
    "as before": {},
    "new string column": {"airport": ["JFK", "LGA"] * (ROWS // 2)},
    "new number": {"wind": np.arange(ROWS) / 2},
    "missing column": {"temp": None},
    "new domain value": {"carrier": ["AA", "ZZ"] * (ROWS // 2)},
    "integer has become text": {"seats": ["few", "many"] * (ROWS // 2)},
    "integer has become float": {"seats": np.arange(ROWS) / 40},
    "float has become integer": {"temp": np.arange(ROWS) % 90},
    "text has become integer": {"carrier": np.arange(ROWS)},
    "less often present": {"gate": np.where(np.arange(ROWS) % 2 == 0, None, "A1")},
    "all missing": {"carrier": np.array([None] * ROWS)},
    "out of range": {"temp": np.arange(ROWS) - 50.5, "seats": np.arange(ROWS)},
    "multivalent": {"seats": [[1, 2], [3]] * (ROWS // 2)},
    "infinite": {"temp": [np.inf, 1.0] * (ROWS // 2)},
    "several at once": {"carrier": ["ZZ"] * ROWS, "temp": None, "wind": np.ones(ROWS), "seats": np.arange(ROWS) / 40},
}


def old_schema() -> Any:
    """A schema of :func:`_frame`, with what a person set in it."""
    import tensorflow_data_validation as tfdv

    schema = infer_schema(tfdv.generate_statistics_from_dataframe(_frame()), label="late")
    tfdv.set_domain(schema, "temp", _float_domain(0, 90))
    tfdv.get_feature(schema, "seats").int_domain.max = 4
    tfdv.get_feature(schema, "seats").int_domain.min = 0
    tfdv.get_feature(schema, "carrier").annotation.tag.append("by hand")
    tfdv.get_feature(schema, "temp").skew_comparator.jensen_shannon_divergence.threshold = 0.42
    return schema


def _float_domain(low: float, high: float) -> Any:
    from tensorflow_metadata.proto.v0 import schema_pb2

    return schema_pb2.FloatDomain(min=low, max=high, disallow_inf=True)


def proposals(context: StepContext) -> dict[str, Any]:
    """For each kind of new data and each environment: TFDV's anomalies before and after, and the differences."""
    import tensorflow_data_validation as tfdv

    schema = old_schema()
    found: dict[str, Any] = {}
    for name, changed in NEW_DATA.items():
        statistics = tfdv.generate_statistics_from_dataframe(_frame(**changed))
        serving = tfdv.generate_statistics_from_dataframe(_frame(**changed).drop(columns="late"))
        for environment, rows in (("TRAINING", statistics), ("SERVING", serving)):
            before = to_text(schema)
            proposed = propose_schema(schema, rows, environment=environment)
            assert to_text(schema) == before, "the given schema is changed"
            found[f"{name}, {environment}"] = {
                "anomalies_before": _anomalies(rows, schema, environment),
                "anomalies_after": _anomalies(rows, proposed, environment),
                "diff": str(diff_schemas(schema, proposed)).splitlines(),
                "as_tfdv": proposed == tfdv.update_schema(schema, rows),
                "again": to_text(propose_schema(proposed, rows, environment=environment)) == to_text(proposed),
            }
    label_in_serving = propose_schema(schema, tfdv.generate_statistics_from_dataframe(_frame()), environment="SERVING")
    found["label in serving"] = str(diff_schemas(schema, label_in_serving))
    found["rows"] = _row_bounds(schema)
    tfdv.set_domain(schema, "temp", _float_domain(-1e30, 50.5))
    integers = tfdv.generate_statistics_from_dataframe(_frame(temp=np.arange(ROWS) % 50))
    fractions = tfdv.generate_statistics_from_dataframe(_frame(late=np.arange(ROWS) % 2 / 1.0))
    found["label of fractions"] = _anomalies(fractions, infer_schema(fractions, label="late"), "TRAINING")
    found["wide range"] = str(diff_schemas(schema, propose_schema(schema, integers))).splitlines()
    return found


def _anomalies(statistics: Any, schema: Any, environment: str) -> list[str]:
    import tensorflow_data_validation as tfdv
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    anomalies = tfdv.validate_statistics(statistics, schema, environment=environment)
    infos = [*anomalies.anomaly_info.values(), anomalies.dataset_anomaly_info]
    return sorted(anomalies_pb2.AnomalyInfo.Type.Name(reason.type) for info in infos for reason in info.reason)


def _row_bounds(schema: Any) -> dict[str, Any]:
    import tensorflow_data_validation as tfdv

    bounded = type(schema)()
    bounded.CopyFrom(schema)
    bounded.dataset_constraints.min_examples_count = 1000
    statistics = tfdv.generate_statistics_from_dataframe(_frame())
    proposed = propose_schema(bounded, statistics)
    refused = []
    for bad_statistics, environment in ((type(statistics)(datasets=[{}]), "TRAINING"), (statistics, "NIGHT")):
        try:
            propose_schema(schema, bad_statistics, environment=environment)
        except BadInput as error:
            refused.append(str(error))
    return {
        "diff": str(diff_schemas(bounded, proposed)),
        "anomalies": [_anomalies(statistics, s, "TRAINING") for s in (bounded, proposed)],
        "refused": refused,
    }


def _mutations() -> dict[str, Callable[[Any], Any]]:
    from tensorflow_metadata.proto.v0 import schema_pb2

    def feature(schema: Any, name: str) -> Any:
        return next(feature for feature in schema.feature if feature.name == name)

    def domain(schema: Any) -> Any:
        return next(domain for domain in schema.string_domain if domain.name == "carrier")

    def rename_domain(schema: Any) -> None:
        domain(schema).name = feature(schema, "carrier").domain = "airline"

    def inline_domain(schema: Any) -> None:
        values = list(domain(schema).value)
        schema.string_domain.remove(domain(schema))
        feature(schema, "carrier").string_domain.value.extend(values)

    return {
        "added": lambda s: s.feature.add(name="wind", type=schema_pb2.FLOAT),
        "removed": lambda s: s.feature.remove(feature(s, "temp")),
        "type": lambda s: setattr(feature(s, "seats"), "type", schema_pb2.FLOAT),
        "presence": lambda s: setattr(feature(s, "carrier").presence, "min_fraction", 0.123456),
        "min_count": lambda s: setattr(feature(s, "carrier").presence, "min_count", 30),
        "no presence": lambda s: feature(s, "carrier").ClearField("presence"),
        "domain gains": lambda s: domain(s).value.extend(["ZZ", "YY"]),
        "domain changes": lambda s: domain(s).value.__setitem__(0, "9E"),
        "domain gains many": lambda s: domain(s).value.extend([f"x{i}" for i in range(400)]),
        "domain dropped": lambda s: feature(s, "carrier").ClearField("domain"),
        "domain undefined": lambda s: setattr(feature(s, "carrier"), "domain", "nowhere"),
        "values per row": lambda s: setattr(feature(s, "temp").value_count, "max", 3),
        "shape": lambda s: feature(s, "temp").shape.dim.add(size=2),
        "environments": lambda s: s.default_environment.append("BATCH"),
        "not_in": lambda s: feature(s, "gate").not_in_environment.append("SERVING"),
        "in": lambda s: feature(s, "gate").in_environment.append("SERVING"),
        "drift": lambda s: setattr(feature(s, "temp").drift_comparator.jensen_shannon_divergence, "threshold", 0.3),
        "skew gone": lambda s: feature(s, "temp").ClearField("skew_comparator"),
        "range": lambda s: setattr(feature(s, "temp").float_domain, "max", 120.5),
        "open range": lambda s: feature(s, "seats").int_domain.ClearField("max"),
        "infinite range": lambda s: setattr(feature(s, "temp").float_domain, "max", float("inf")),
        "no infinity": lambda s: setattr(feature(s, "temp").float_domain, "disallow_inf", False),
        "deprecated": lambda s: setattr(feature(s, "temp"), "lifecycle_stage", schema_pb2.DEPRECATED),
        "old flag": lambda s: setattr(feature(s, "temp"), "deprecated", True),
        "distribution": lambda s: setattr(feature(s, "carrier").distribution_constraints, "min_domain_mass", 0.9),
        "unique": lambda s: setattr(feature(s, "carrier").unique_constraints, "max", 9),
        "annotation": lambda s: feature(s, "carrier").annotation.tag.append("more"),
        "semantic": lambda s: feature(s, "gate").url_domain.SetInParent(),
        "sparse": lambda s: s.sparse_feature.add(name="words", value_feature={"name": "temp"}),
        "weighted": lambda s: s.weighted_feature.add(name="heavy", feature={"step": ["temp"]}),
        "rows": lambda s: setattr(s.dataset_constraints, "min_examples_count", 7),
        "unused domain": lambda s: s.string_domain.add(name="spare", value=["a"]),
        "tensors": lambda s: s.tensor_representation_group["g"].tensor_representation["t"].SetInParent(),
        "nested": lambda s: feature(s, "gate").struct_domain.feature.add(name="letter", type=schema_pb2.BYTES),
        "markup": lambda s: domain(s).value.append("<b>[x](http://y)`*_|"),
        # What means the same.
        "same": lambda s: None,
        "order of features": lambda s: s.feature.sort(key=lambda feature: feature.name, reverse=True),
        "order of values": lambda s: domain(s).value.reverse(),
        "name of the domain": rename_domain,
        "inline domain": inline_domain,
    }


def differences(context: StepContext) -> dict[str, Any]:
    """The difference that each mutation of a schema makes, both ways."""
    found: dict[str, Any] = {}
    for name, mutate in _mutations().items():
        before, after = old_schema(), old_schema()
        mutate(after)
        there, back = diff_schemas(before, after), diff_schemas(after, before)
        assert bool(there) == bool(back), name
        found[name] = {
            "text": str(there),
            "back": str(back),
            "markdown": there.to_markdown(),
            "changes": there.to_dict()["changes"],
        }
    paths = [context.scratch / "a.pbtxt", context.scratch / "b.pbtxt"]
    for path, schema in zip(paths, (before, after), strict=True):
        path.write_text(to_text(schema), encoding="utf-8")
    assert load_schema(paths[0]) == before
    found["of paths"] = str(diff_schemas(*paths)) == str(diff_schemas(before, after))
    many = old_schema()
    for index in range(300):
        many.feature.add(name=f"x{index}")
    found["long"] = diff_schemas(old_schema(), many).to_markdown(limit=10).splitlines()
    return found


def parse_errors(context: StepContext) -> list[str]:
    """What is said of schemas that do not parse."""
    texts = ['feature {\n  name: "x"\n  tpe: INT\n}', "feature {", "feature { type: FLOT }", 'feature { name: "" }']
    errors = []
    for text in [*texts, 'feature { name: "x" }\nfeature { name: "x" }']:
        try:
            parse_schema(text, "s.pbtxt")
        except BadInput as error:
            errors.append(str(error))
    (context.scratch / "latin.pbtxt").write_bytes(b'feature { name: "\xe9" }')
    try:
        load_schema(context.scratch / "latin.pbtxt")
    except BadInput as error:
        errors.append(str(error))
    return errors
