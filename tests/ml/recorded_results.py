"""Results of other libraries' slow pipelines, recorded once; the scheduled run compares them with the pipelines.

``HOPS_TEST_RECORD=1`` and ``-m scheduled`` record them anew.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def check_recorded(name: str, result: Any) -> None:
    """Asserts that a library still gives the recorded result."""
    text = json.dumps(result, sort_keys=True)
    if os.environ.get("HOPS_TEST_RECORD"):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    assert_close(json.loads(text), recorded(name))


def assert_close(result: Any, expected: Any) -> None:
    """Asserts that values of JSON are equal, but for the order in which floats were summed."""
    if isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for key in expected:
            assert_close(result[key], expected[key])
    elif isinstance(expected, list):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert result == pytest.approx(expected, rel=1e-12, abs=1e-15)
    else:
        assert result == expected
