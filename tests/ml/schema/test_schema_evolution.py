"""Differences of schemas, and proposals for data that has changed, held against TFDV itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.schema import diff_schemas, infer_schema, load_schema, parse_schema, propose_schema, to_text

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


AS_TFDV: dict[str, dict[str, Any]] = {
    "as before": {},
    "missing column": {"temp": None},
    "new domain value": {"carrier": ["AA", "ZZ"] * (ROWS // 2)},
    "less often present": {"gate": np.where(np.arange(ROWS) % 2 == 0, None, "A1")},
    "all missing": {"carrier": np.array([None] * ROWS)},
    "out of range": {"temp": np.arange(ROWS) - 50.5, "seats": np.arange(ROWS)},
    "multivalent": {"seats": [[1, 2], [3]] * (ROWS // 2)},
}
"""Changes for which TFDV has a schema of its own."""
VALUES = (
    st.integers(-(2**40), 2**40), st.floats(width=32), st.sampled_from(["AA", "B6", "new", "1", "é\n"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=3), st.none(),
)  # fmt: skip
COLUMNS = st.one_of(*(st.lists(values | st.none(), min_size=1, max_size=5) for values in VALUES))
CHANGES = st.dictionaries(st.sampled_from(["carrier", "gate", "temp", "seats", "wind"]), st.none() | COLUMNS)


def _statistics(**changed: Any) -> Any:
    return tfdv.generate_statistics_from_dataframe(_frame(**changed))


@pytest.fixture(scope="module")
def inferred() -> bytes:
    return infer_schema(_statistics(), label="late").SerializeToString()


@pytest.fixture
def schema(inferred: bytes) -> Any:
    """A schema of :func:`_frame`, with what a person set in it."""
    schema = schema_pb2.Schema.FromString(inferred)
    tfdv.set_domain(schema, "temp", _float_domain(0, 90))
    tfdv.get_feature(schema, "seats").int_domain.max = 4
    tfdv.get_feature(schema, "seats").int_domain.min = 0
    tfdv.get_feature(schema, "carrier").annotation.tag.append("by hand")
    tfdv.get_feature(schema, "temp").skew_comparator.jensen_shannon_divergence.threshold = 0.42
    return schema


def _float_domain(low: float, high: float) -> Any:
    return schema_pb2.FloatDomain(min=low, max=high, disallow_inf=True)


def _anomalies(statistics: Any, schema: Any, environment: str = "TRAINING") -> list[str]:
    anomalies = tfdv.validate_statistics(statistics, schema, environment=environment)
    infos = [*anomalies.anomaly_info.values(), anomalies.dataset_anomaly_info]
    return sorted(anomalies_pb2.AnomalyInfo.Type.Name(reason.type) for info in infos for reason in info.reason)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES, environment=st.sampled_from(["TRAINING", "SERVING"]))
def test_proposed_schema_accepts_any_data_and_changes_no_other_feature(
    schema: Any, changes: dict[str, list[Any] | None], environment: str
) -> None:
    columns = {name: values and (values * ROWS)[:ROWS] for name, values in changes.items()}
    statistics = _statistics(**columns, **({"late": None} if environment == "SERVING" else {}))
    text = to_text(schema)
    proposed = propose_schema(schema, statistics, environment=environment)
    assert to_text(schema) == text, "the given schema is changed"
    assert _anomalies(statistics, proposed, environment) == []
    again = propose_schema(proposed, statistics, environment=environment)
    assert to_text(again) == to_text(proposed), "a proposal of the proposal is the same"
    assert {change["feature"] for change in diff_schemas(schema, proposed).to_dict()["changes"]} <= changes.keys()


def test_proposal_is_that_of_tfdv_where_it_has_one(schema: Any) -> None:
    for name, changes in AS_TFDV.items():
        statistics = _statistics(**changes)
        assert propose_schema(schema, statistics) == tfdv.update_schema(schema, statistics), name


def test_a_label_that_appears_in_serving_is_declared_there(schema: Any) -> None:
    proposed = propose_schema(schema, _statistics(), environment="SERVING")
    assert str(diff_schemas(schema, proposed)) == "late: not_in_environment is none, was SERVING"


def test_inferred_schema_fits_its_data_with_float_label() -> None:
    fractions = _statistics(late=np.arange(ROWS) % 2 / 1.0)
    assert _anomalies(fractions, infer_schema(fractions, label="late")) == []


def test_unreachable_bound_is_dropped_when_float_becomes_integer(schema: Any) -> None:
    tfdv.set_domain(schema, "temp", _float_domain(-1e30, 50.5))
    proposed = propose_schema(schema, _statistics(temp=np.arange(ROWS) % 50))
    assert str(diff_schemas(schema, proposed)).splitlines()[:2] == [
        "temp: type is INT, was FLOAT",
        "temp: range is at most 50, was -1e+30 to 50.5",
    ]


def test_row_count_bounds_are_adjusted(schema: Any) -> None:
    schema.dataset_constraints.min_examples_count = 1000
    statistics = _statistics()
    proposed = propose_schema(schema, statistics)
    assert [_anomalies(statistics, one) for one in (schema, proposed)] == [["DATASET_LOW_NUM_EXAMPLES"], []]
    assert str(diff_schemas(schema, proposed)) == (
        "schema: dataset_constraints is {min_examples_count: 200}, was {min_examples_count: 1000}"
    )


def test_unfixable_anomalies_are_refused(schema: Any) -> None:
    statistics = _statistics()
    with pytest.raises(BadInput, match="the statistics are of no rows; a schema cannot be proposed from them"):
        propose_schema(schema, type(statistics)(datasets=[{}]))
    with pytest.raises(BadInput, match="environment 'NIGHT' is not in the schema; there are TRAINING, SERVING"):
        propose_schema(schema, statistics, environment="NIGHT")


def _feature(schema: Any, name: str) -> Any:
    return next(feature for feature in schema.feature if feature.name == name)


def _domain(schema: Any) -> Any:
    return next(domain for domain in schema.string_domain if domain.name == "carrier")


def _rename_domain(schema: Any) -> None:
    _domain(schema).name = _feature(schema, "carrier").domain = "airline"


def _inline_domain(schema: Any) -> None:
    values = list(_domain(schema).value)
    schema.string_domain.remove(_domain(schema))
    _feature(schema, "carrier").string_domain.value.extend(values)


def _gain(schema: Any) -> None:
    _domain(schema).value.extend(["ZZ", "YY"])


def _deprecate(schema: Any) -> None:
    _feature(schema, "temp").lifecycle_stage = schema_pb2.DEPRECATED


MUTATIONS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.feature.add(name="wind", type=schema_pb2.FLOAT), "wind: new feature: type FLOAT"),
    (lambda s: s.feature.remove(_feature(s, "temp")), "temp: removed"),
    (lambda s: setattr(_feature(s, "seats"), "type", schema_pb2.FLOAT), "seats: type is FLOAT, was INT"),
    (lambda s: setattr(_feature(s, "carrier").presence, "min_fraction", 0.123456),
     "carrier: presence is in at least 12.3456% of the rows, was in at least 100% of the rows"),
    (lambda s: setattr(_feature(s, "carrier").presence, "min_count", 30),
     "carrier: presence is in at least 100% of the rows, at least 30 times, was in at least 100% of the rows"),
    (_gain, "carrier: domain gains 'YY', 'ZZ'"),
    (lambda s: _domain(s).value.__setitem__(0, "9E"), "carrier: domain gains '9E'; loses 'AA'"),
    (lambda s: _domain(s).value.extend([f"x{i}" for i in range(400)]),
     "carrier: domain gains 'x0', 'x1', 'x10', 'x100', 'x101' and 395 more"),
    (lambda s: setattr(_feature(s, "carrier"), "domain", "nowhere"),
     "schema: unused string_domain 'carrier' is 2 values ('AA', 'B6'), was none\n"
     "carrier: domain is 'nowhere', which is not defined, was 2 values ('AA', 'B6')"),
    (lambda s: setattr(_feature(s, "temp").value_count, "max", 3), "temp: values per row is 1 to 3, was 1"),
    (lambda s: _feature(s, "temp").shape.dim.add(size=2),
     "temp: values per row is none, was 1\ntemp: shape is {dim { size: 2 }}, was none"),
    (lambda s: s.default_environment.append("BATCH"),
     "schema: environments is BATCH, SERVING, TRAINING, was SERVING, TRAINING"),
    (lambda s: _feature(s, "gate").not_in_environment.append("SERVING"),
     "gate: not_in_environment is SERVING, was none"),
    (lambda s: setattr(_feature(s, "temp").drift_comparator.jensen_shannon_divergence, "threshold", 0.3),
     "temp: drift_comparator is jensen_shannon_divergence 0.3, was distance"),
    (lambda s: _feature(s, "temp").ClearField("skew_comparator"),
     "temp: skew_comparator is none, was jensen_shannon_divergence 0.42"),
    (lambda s: setattr(_feature(s, "temp").float_domain, "max", 120.5), "temp: range is 0 to 120.5, was 0 to 90"),
    (lambda s: _feature(s, "seats").int_domain.ClearField("max"), "seats: range is at least 0, was 0 to 4"),
    (lambda s: setattr(_feature(s, "temp").float_domain, "max", float("inf")), "temp: range is 0 to inf, was 0 to 90"),
    (lambda s: setattr(_feature(s, "temp").float_domain, "disallow_inf", False),
     "temp: float_domain is {disallow_inf: false}, was {disallow_inf: true}"),
    (_deprecate, "temp: lifecycle_stage is DEPRECATED, was none"),
    (lambda s: setattr(_feature(s, "carrier").distribution_constraints, "min_domain_mass", 0.9),
     "carrier: distribution_constraints is {min_domain_mass: 0.9}, was none"),
    (lambda s: _feature(s, "carrier").annotation.tag.append("more"),
     'carrier: annotation is {tag: "by hand" tag: "more"}, was {tag: "by hand"}'),
    (lambda s: s.sparse_feature.add(name="words", value_feature={"name": "temp"}),
     'schema: sparse_feature \'words\' is {name: "words" value_feature { name: "temp" }}, was none'),
    (lambda s: setattr(s.dataset_constraints, "min_examples_count", 7),
     "schema: dataset_constraints is {min_examples_count: 7}, was none"),
    (lambda s: s.string_domain.add(name="spare", value=["a"]),
     "schema: unused string_domain 'spare' is 1 value ('a'), was none"),
    (lambda s: _feature(s, "gate").struct_domain.feature.add(name="letter", type=schema_pb2.BYTES),
     "schema: unused string_domain 'gate' is 1 value ('A1'), was none\n"
     "gate: domain is none, was 1 value ('A1')\n"
     "gate.letter: new feature: type BYTES"),
]  # fmt: skip
"""Changes of a schema, and the difference in words."""
FOUND: dict[str, Callable[[Any], Any]] = {
    "domain dropped": lambda s: _feature(s, "carrier").ClearField("domain"),
    "semantic": lambda s: _feature(s, "gate").url_domain.SetInParent(),
    "tensors": lambda s: s.tensor_representation_group["g"].tensor_representation["t"].SetInParent(),
    "markup": lambda s: _domain(s).value.append("<b>[x](http://y)`*_|"),
}
EQUIVALENT: dict[str, Callable[[Any], Any]] = {
    "same": lambda s: None,
    "order of features": lambda s: s.feature.sort(key=lambda feature: feature.name, reverse=True),
    "order of values": lambda s: _domain(s).value.reverse(),
    "name of the domain": _rename_domain,
    "inline domain": _inline_domain,
}


def _differences(schema: Any, change: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The difference that a change makes, and the one back."""
    after = type(schema)()
    after.CopyFrom(schema)
    change(after)
    there, back = diff_schemas(schema, after), diff_schemas(after, schema)
    assert bool(there) == bool(back)
    return there, back


@pytest.mark.parametrize(("change", "text"), MUTATIONS)
def test_difference_is_described_in_text(schema: Any, change: Callable[[Any], Any], text: str) -> None:
    there, back = _differences(schema, change)
    assert str(there) == text
    assert str(back) not in ("", text)
    changes = there.to_dict()["changes"]
    json.dumps(changes, allow_nan=False)
    assert [f"{change['feature'] or 'schema'}: {change['text']}" for change in changes] == text.splitlines()


def test_other_differences_are_found_and_equivalent_schemas_have_none(schema: Any) -> None:
    for change in FOUND.values():
        assert str(_differences(schema, change)[0])
    for name, change in EQUIVALENT.items():
        there, _ = _differences(schema, change)
        assert str(there) == "" and there.to_dict()["changes"] == [], name


def test_difference_is_written_as_json_and_markdown(schema: Any) -> None:
    assert _differences(schema, _gain)[0].to_dict()["changes"] == [
        {
            "feature": "carrier",
            "aspect": "domain",
            "before": ["AA", "B6"],
            "after": ["AA", "B6", "YY", "ZZ"],
            "text": "domain gains 'YY', 'ZZ'",
        }
    ]
    deprecated, _ = _differences(schema, _deprecate)
    assert deprecated.to_markdown() == "- **temp**: lifecycle\\_stage is DEPRECATED, was none"
    markup, _ = _differences(schema, FOUND["markup"])
    assert markup.to_markdown() == "- **carrier**: domain gains '\\<b\\>\\[x\\]\\(http\\://y\\)\\`\\*\\_\\|'"


def test_long_difference_is_truncated_with_a_note(schema: Any) -> None:
    many = type(schema)()
    many.CopyFrom(schema)
    for index in range(300):
        many.feature.add(name=f"x{index}")
    lines = diff_schemas(schema, many).to_markdown(limit=10).splitlines()
    assert len(lines) == 11 and lines[-1] == "- and 290 more"


def test_difference_of_files_equals_that_of_schemas(schema: Any, tmp_path: Path) -> None:
    other = propose_schema(schema, _statistics(temp=None))
    paths = [tmp_path / "a.pbtxt", tmp_path / "b.pbtxt"]
    for path, one in zip(paths, (schema, other), strict=True):
        path.write_text(to_text(one), encoding="utf-8")
    assert load_schema(paths[0]) == schema
    assert str(diff_schemas(*paths)) == str(diff_schemas(schema, other)) != ""
    paths[0].write_bytes(b'feature { name: "\xe9" }')
    with pytest.raises(BadInput, match=r"a\.pbtxt: not a schema in protobuf text \("):
        load_schema(paths[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('feature {\n  name: "x"\n  tpe: INT\n}', "s.pbtxt:3:3: not a schema in protobuf text: Message type "),
        ("feature {", 's.pbtxt:1:9: not a schema in protobuf text: Expected "}".'),
        ("feature { type: FLOT }", "s.pbtxt:1:17: not a schema in protobuf text: "),
        ('feature { name: "" }', "s.pbtxt: feature 1 of 1: expected a unique name, found none"),
        (
            'feature { name: "x" }\nfeature { name: "x" }',
            "s.pbtxt: feature 2 of 2: expected a unique name, found a second one named 'x'",
        ),
    ],
)
def test_schema_parse_error_has_line_and_column(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(message)}"):
        parse_schema(text, "s.pbtxt")
