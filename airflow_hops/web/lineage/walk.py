"""Walks from an artifact to its sources and to artifacts made from it, by their manifests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache, cached
from fastapi import HTTPException

from airflow_hops.core.artifacts.artifact import Artifact, Manifest
from airflow_hops.core.lineage import Link, links_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.artifacts.lookup import missing_state, open_artifact
from airflow_hops.web.unusable_files import reading_threads

MAX_NODES = 300
"""Maximum number of artifacts in a lineage, for each direction."""
_KEPT = 20_000

Key = tuple[str, str]
"""Identity of an artifact: its address in the store, and its fingerprint."""


@dataclass(frozen=True)
class Opened:
    """An artifact of a lineage; ``manifest`` is None if it is not present, and ``detail`` says why."""

    artifact: Artifact
    manifest: Manifest | None
    state: Literal["present", "deleted", "unreachable"] = "present"
    detail: str | None = None

    @property
    def key(self) -> Key:
        """Identity of the artifact."""
        return self.artifact.uri, self.artifact.fingerprint


Walk = tuple[dict[Key, Opened], dict[tuple[Key, Key], Link], bool]
"""A lineage: artifacts by identity, links from source to target, and whether these are all."""


def walk_back(store: ArtifactStore, start: Opened, may_see: Callable[[Manifest], bool]) -> Walk:
    """Returns all sources of an artifact, up to :data:`MAX_NODES`; those of hidden artifacts are not followed."""
    opened, links, is_whole = {start.key: start}, dict[tuple[Key, Key], Link](), True
    level = [start]
    with reading_threads() as readers:
        while level:
            wanted: dict[Key, Link] = {}
            for each in level:
                if each.manifest is None or not may_see(each.manifest):
                    continue
                for link in links_of(each.manifest):
                    key = (link.source.uri, link.source.fingerprint)
                    links.setdefault((key, each.key), link)
                    if key not in opened and (key not in wanted or link.followed):
                        wanted[key] = link
            room = MAX_NODES - len(opened)
            is_whole = is_whole and len(wanted) <= room
            taken = list(wanted.values())[:room]
            result = list(readers.map(lambda link: open_one(store, link.source), taken))
            opened |= {each.key: each for each in result}
            level = [each for each, link in zip(result, taken, strict=True) if link.followed]
    links = {ends: link for ends, link in links.items() if ends[0] in opened}
    return opened, links, is_whole


def walk_on(
    store: ArtifactStore, start: Opened, candidates: Iterable[Artifact], may_see: Callable[[Manifest], bool]
) -> Walk:
    """Returns the candidates made from an artifact, nearest first, up to :data:`MAX_NODES`."""
    opened, linked, is_whole = {start.key: start}, dict[tuple[Key, Key], Link](), True
    made_from: dict[Key, list[tuple[Artifact, Link]]] = {}
    unique = list({(artifact.uri, artifact.fingerprint): artifact for artifact in candidates}.values())
    with reading_threads() as readers:
        links = list(readers.map(lambda artifact: known_links(store, artifact), unique))
    for artifact, sources in zip(unique, links, strict=True):
        for link in sources:
            made_from.setdefault((link.source.uri, link.source.fingerprint), []).append((artifact, link))
    level = [start]
    while level:
        results: list[Opened] = []
        for each in level:
            if each.manifest is None or not may_see(each.manifest):
                continue
            for artifact, link in made_from.get(each.key, []):
                key = (artifact.uri, artifact.fingerprint)
                if key not in opened:
                    if len(opened) >= MAX_NODES:
                        is_whole = False
                        continue
                    opened[key] = open_one(store, artifact)
                    results.append(opened[key])
                linked.setdefault((each.key, key), link)
        level = results
    return opened, linked, is_whole


def open_one(store: ArtifactStore, artifact: Artifact) -> Opened:
    """Opens an artifact; a missing one has the reason instead of a manifest."""
    try:
        _, manifest = open_artifact(store, artifact)
    except HTTPException as error:
        return Opened(artifact, None, missing_state(error), str(error.detail))
    return Opened(artifact, manifest)


@cached(LRUCache(_KEPT), key=lambda store, artifact: (artifact.uri, artifact.fingerprint), lock=threading.Lock())
def _read_links(store: ArtifactStore, artifact: Artifact) -> list[Link]:
    """Returns the sources of an artifact, which never change; raises HTTPException if it is gone."""
    return links_of(open_artifact(store, artifact)[1])


def known_links(store: ArtifactStore, artifact: Artifact) -> list[Link]:
    """Returns the sources of an artifact; empty if it is gone."""
    try:
        return _read_links(store, artifact)
    except HTTPException:
        return []
