"""Descriptions of the texts of a frozen schema, for the pages: ``pages/<SHA-256 of the text>.json`` beside it."""

from __future__ import annotations

import hashlib

from airflow_hops.core.errors import UnreadableText
from airflow_hops.core.schema.page import SchemaPage
from airflow_hops.core.store.artifact_store import ArtifactStore


def read_page(store: ArtifactStore, uri: str, text: str) -> SchemaPage | None:
    """Returns the description of a text of the schema at ``uri``; None if no step has written it.

    Raises:
        UnreadableText: the file is not a description.
    """
    try:
        return SchemaPage.from_dict(store.read_json(_uri(uri, text)))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise UnreadableText(_uri(uri, text), f": not the description of a schema ({error}); remove it") from error


def has_page(store: ArtifactStore, uri: str, text: str) -> bool:
    """Returns whether a step has described a text of the schema at ``uri``."""
    return store.files.exists(_uri(uri, text))


def write_page(store: ArtifactStore, uri: str, text: str, page: str) -> None:
    """Writes the description of a text of the schema at ``uri``; ``page`` is JSON of a ``SchemaPage``."""
    store.write_text(_uri(uri, text), page)


def _uri(uri: str, text: str) -> str:
    return f"{uri.rpartition('/')[0]}/pages/{hashlib.sha256(text.encode()).hexdigest()}.json"
