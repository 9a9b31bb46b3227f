"""Finds the class of a source by the scheme of its URI."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import SOURCES, extensions, load_class
from airflow_hops.core.sources.sources import AnySource, RowSource, Source, scheme_of


def source_class(uri: object) -> type[AnySource]:
    """Returns the class of the sources with a URI's scheme; that of files if none is registered."""
    scheme = scheme_of(uri)
    return load_class(SOURCES, scheme, AnySource) if scheme in extensions(SOURCES) else Source


def row_source(name: str, value: RowSource | str | Mapping[str, object]) -> RowSource:
    """Returns the source of a table's rows for a value in a DAG, of the class that its URI's scheme has.

    Raises:
        BadInput: as :meth:`AnySource.from_value`, the value is of another class, or its class cannot be imported.
    """
    uri = value.uri if isinstance(value, AnySource) else value.get("uri") if isinstance(value, Mapping) else value
    kind = source_class(uri)
    if isinstance(value, RowSource) and type(value) is Source is not kind:
        raise BadInput(f"sources[{name!r}]: {uri!r} does not name files; pass a {kind.__name__}, or only the URI")
    return value if isinstance(value, RowSource) else kind.from_value(name, value)  # type: ignore[return-value]
