"""Reads the catalogues of trusted organisations, and previews and torrent files, over HTTP.

Received data is limited in size, and only used if a trusted key has signed it, or if it has the SHA-256 of a signed
entry.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_files import parse_json
from airflow_hops.extensions.sharing.core.entries import (
    MOST_CATALOGUE_BYTES,
    MOST_DOCUMENT_BYTES,
    Dataset,
    DatasetEntry,
    Seed,
)
from airflow_hops.extensions.sharing.core.records import Catalogue
from airflow_hops.extensions.sharing.core.settings import Trusted
from airflow_hops.extensions.sharing.core.statements import ENTRY, SEED, digest_of, sequence_of, verify

# Against an old or forged catalogue: statements count only with a trusted key's signature, the signed sequence number
# must not fall, and an entry's name and version keep the SHA-256 with which they were first seen. A failed read keeps
# the previous content, with the error. Redirects and compression are off: the host must be the configured one, and the
# size limit must hold for what is stored.

_MOST_STATEMENTS = 20_000
_MOST_REJECTED = 20
_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=10, sock_read=30)


async def read_catalogue(trusted: Trusted, known: Catalogue | None) -> Catalogue:
    """Returns the verified content of an organisation's catalogue; on failure the previous one, with the error."""
    names = {trusted.key: trusted.organisation}
    if known is None or known.key != trusted.key:
        known = Catalogue(trusted.organisation, "")
    known = replace(known, url=trusted.catalogue, key=trusted.key, hosts=trusted.hosts)
    try:
        content = await fetch(f"{trusted.catalogue.rstrip('/')}/catalogue.json", MOST_CATALOGUE_BYTES)
        value = parse_json(content, trusted.catalogue)
        statements = value["statements"] if isinstance(value, dict) else None
        if not isinstance(statements, list) or len(statements) > _MOST_STATEMENTS:
            raise HopsError(f"{trusted.catalogue}: expected an object with up to {_MOST_STATEMENTS} statements")
        sequence = sequence_of(value.get("catalogue"), statements, names)
        if sequence < known.sequence:
            raise HopsError(
                f"{trusted.catalogue}: the number of this catalogue is {sequence}, but {known.sequence} was read "
                f"before: {trusted.organisation}, or someone in between, has put back an old catalogue"
            )
    except (HopsError, KeyError, ValueError) as error:
        return replace(known, error=str(error) or "it has no statements")
    seen = dict(known.seen)
    datasets, seeds, rejected = verified(statements, names, seen)
    return replace(
        known,
        datasets=datasets,
        seeds=seeds,
        sequence=sequence,
        seen=seen,
        rejected=rejected[:_MOST_REJECTED],
        error=None,
        at=time.time(),
    )


def verified(
    statements: Iterable[object], names: Mapping[str, str], seen: dict[str, str]
) -> tuple[list[Dataset], dict[str, list[Seed]], list[str]]:
    """Returns the data sets and the seeds by organisation, and the reasons why other statements are ignored.

    ``seen`` has the SHA-256 of entries by ``name@version``; those that are new are added.
    """
    datasets: dict[Any, Dataset] = {}
    seeds: dict[str, list[Seed]] = {}
    rejected = []
    for number, statement in enumerate(statements):
        try:
            organisation, kind, content = verify(statement, names)
            if kind == SEED:
                seeds.setdefault(organisation, []).append(Seed.from_dict(content).check())
            elif kind == ENTRY:
                made = Dataset(organisation, DatasetEntry.from_dict(content).check())
                digest = digest_of(content)
                if seen.setdefault(f"{made.entry.name}@{made.entry.version}", digest) != digest:
                    raise ValueError(
                        f"{made.ref} has changed its content, which a version must not; {organisation} must publish a "
                        "new one"
                    )
                datasets[made.ref] = made
        except (BadInput, TypeError, ValueError) as error:
            rejected.append(f"statement {number}: {error}")
    return list(datasets.values()), seeds, rejected


async def fetch(url: str, most_bytes: int) -> bytes:
    """Returns the body of a response.

    Raises:
        HopsError: no answer, another status than 200, or more than ``most_bytes``.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True, auto_decompress=False) as session,
            session.get(url, headers={"Accept-Encoding": "identity"}, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise HopsError(f"{url}: answered {response.status}")
            content = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                content += piece
                if len(content) > most_bytes:
                    raise HopsError(f"{url}: more than {most_bytes} bytes")
            return bytes(content)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise HopsError(f"{url}: {type(error).__name__}: {error}") from None


async def fetch_document(urls: Sequence[str], digest: str) -> bytes:
    """Returns a preview or torrent file by its SHA-256, from the first catalogue that has it.

    Raises:
        HopsError: none has it.
    """
    problems = []
    for url in urls:
        try:
            content = await fetch(f"{url.rstrip('/')}/documents/{digest}", MOST_DOCUMENT_BYTES)
        except HopsError as error:
            problems.append(str(error))
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        problems.append(f"{url}: its document {digest} has other content")
    raise HopsError("; ".join(problems) or "no catalogue has it")


def seed_addresses(catalogues: Iterable[Catalogue], info_hash: str, trusted: Collection[str]) -> dict[str, str]:
    """Returns the organisations that give a data set to others, by address."""
    return {
        seed.address: organisation
        for catalogue in catalogues
        for organisation, seeds in catalogue.seeds.items()
        if organisation in trusted
        for seed in seeds
        if seed.info_hash == info_hash
    }
