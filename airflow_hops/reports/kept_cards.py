"""Model cards stored with a version, as they were at a decision on serving.

``<store>/_cards/<model>/<version>/<time>/`` has ``card.md``, and ``card.json``, a :class:`KeptCard`; ``<time>`` is the
time of the card, which is never changed. A card has everything that is known, so it is only for readers who may see the
artifacts of all DAGs that it mentions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_hops.core.errors import HopsError
from airflow_hops.core.json_fields import CheckedFields, omit_if_none
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.models.model_records import read_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import sortable
from airflow_hops.reports.model_card import model_card
from airflow_hops.reports.model_sources import VersionSources

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptCard(CheckedFields):
    """The facts of a stored card.

    Attributes:
        at: Time of the card, ISO 8601 UTC.
        after: Decision that it was stored after, such as "promoted v2".
        whole: Whether the model's artifact still existed.
        dags: DAGs that it mentions.
        docs: Documentation of DAGs, as far as known; later cards use it for DAGs that they do not know.
        decided: Time of the decision, ISO 8601 UTC.
        folder: Folder of the card; not in the file.
    """

    at: str
    after: str
    whole: bool
    dags: Sequence[str]
    docs: Mapping[str, str] = field(default_factory=dict)
    decided: str | None = None
    folder: str | None = omit_if_none()


def keep_cards(
    store: ArtifactStore,
    model_name: str,
    doc_of: Callable[[str], str | None],
) -> str | None:
    """Stores the cards of the versions that the newest decision is about: promoted, rolled back, or replaced.

    It follows the decision and never fails: errors are logged and returned. A repeated task without a new decision
    stores no card. ``doc_of`` is that of :func:`~airflow_hops.reports.model_card.model_card`.
    """
    problems = []
    try:
        record = read_record(store, model_name)
    except Exception as error:  # any exception of the store's client
        log.exception("The cards of model %r could not be kept; the decision stands", model_name)
        return f"No card could be kept ({error})."
    for each in _decided(record):
        newest = record.history[-1]
        try:
            if newest.at not in {card.decided for card in kept_cards(store, model_name, each)}:
                text, retained = current_card(store, model_name, each, doc_of)
                after = f"{newest.event.replace('_', ' ')} v{newest.version}"
                retained = replace(retained, after=after, decided=newest.at)
                folder = store.internal("_cards", model_name, str(each), sortable(retained.at))
                store.create_text(f"{folder}/card.md", text)
                store.write_text(f"{folder}/card.json", json.dumps(retained.to_dict(), indent=1) + "\n")
        except Exception as error:
            log.exception("The card of %s v%d could not be kept; the decision stands", model_name, each)
            problems.append(f"The card of v{each} could not be kept ({error}).")
    return " ".join(problems) or None


def current_card(
    store: ArtifactStore,
    model_name: str,
    version: int,
    doc_of: Callable[[str], str | None],
) -> tuple[str, KeptCard]:
    """Returns the card of a version, and the facts to store with it.

    Documentation that ``doc_of`` does not know is that of the last stored card.
    """
    card = next(kept_cards(store, model_name, version), None)
    docs = dict(card.docs) if card else {}

    def doc(dag_id: str) -> str | None:
        text = doc_of(dag_id)
        docs[dag_id] = docs.get(dag_id, "") if text is None else text
        return docs[dag_id]

    sources, now = VersionSources(store, model_name, version), datetime.now(UTC)
    text = model_card(sources, doc, now)
    whole, dags = sources.model is not None, sorted(sources.dags)
    return text, KeptCard(now.isoformat(timespec="microseconds"), after="", whole=whole, dags=dags, docs=docs)


def find_kept_card(
    store: ArtifactStore, model_name: str, version: int, problems: list[str] | None = None
) -> KeptCard | None:
    """Returns the newest stored card of a version, preferring cards made while the artifact existed.

    Descriptions of damaged cards, which are skipped, are appended to ``problems``.
    """
    result = list(kept_cards(store, model_name, version, problems))
    return next((card for card in result if card.whole), result[0] if result else None)


def kept_cards(
    store: ArtifactStore, model_name: str, version: int, problems: list[str] | None = None
) -> Iterator[KeptCard]:
    """Yields the stored cards of a version, newest first; skips, logs and adds to ``problems`` damaged ones."""
    of_version = store.internal("_cards", model_name, str(version))
    for name in reversed(store.names(of_version)):
        try:
            card = KeptCard.from_dict(store.read_json(store.file(of_version, f"{name}/card.json")))
        except FileNotFoundError:
            continue  # being written, or its writer was killed
        except (TypeError, HopsError, NotADirectoryError) as error:
            report = f"{of_version}/{name}/card.json: not what is known of a kept card ({error}); restore or remove it"
            log.warning("%s", report)
            if problems is not None:
                problems.append(report)
            continue
        yield replace(card, folder=f"{of_version}/{name}")


def read_kept_card(store: ArtifactStore, card: KeptCard) -> str:
    """Returns the text of a stored card.

    Raises:
        BadInput: it is a link out of the card's folder.
        FileNotFoundError: it was deleted.
    """
    assert card.folder is not None, "found by kept_cards"
    return store.read_text(store.file(card.folder, "card.md"))


def _decided(record: ModelRecord) -> list[int]:
    """Returns the versions that the newest decision is about, and those that had traffic before it."""
    if not record.history:
        return []
    *earlier, newest = record.history
    served = next((event.traffic for event in reversed(earlier) if event.traffic), None)
    return sorted({newest.version, *([newest.to] if newest.to else []), *(newest.traffic or {}), *(served or {})})
