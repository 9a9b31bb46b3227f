"""OpenAPI document, which types the pages' client: ``python -m airflow_hops.web.openapi > ui/openapi.json``."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any


def document() -> str:
    """Returns the OpenAPI document as text, in a stable order."""
    from airflow_hops.web.app import make_app

    value = make_app().openapi()
    value["components"], value["paths"] = _untitled(value["components"]), _untitled(value["paths"])
    schemas = value["components"]["schemas"]
    for schema in schemas.values():
        # Pydantic 2.14: says of models that all fields are always sent, but not of each dataclass that they hold.
        schema["required"] = list(schema.get("properties", ()))
    return (
        json.dumps(
            {
                **value,
                "paths": dict(sorted(value["paths"].items())),
                "components": {**value["components"], "schemas": dict(sorted(schemas.items()))},
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _untitled(value: Any) -> Any:
    """Removes titles, which repeat names, at any depth; a property of that name is an object."""
    if isinstance(value, dict):
        return {name: _untitled(item) for name, item in value.items() if name != "title" or not isinstance(item, str)}
    return [_untitled(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # Airflow 3.3: prints while it is imported
        text = document()
    sys.stdout.write(text)
