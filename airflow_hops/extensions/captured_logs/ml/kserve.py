"""Joins the events of KServe's logger, one for each request and one for its response, by their id."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from airflow_hops.extensions.captured_logs.core.source import CapturedSource
from airflow_hops.extensions.captured_logs.ml.entries import (
    LogEntry,
    LogObject,
    answer_of,
    common_entry,
    find_field,
    name_of,
)
from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable, shown

# KServe sends CloudEvents, or writes records to a store by itself, in JSON, CSV or Parquet, of which two have the
# fields of a Go struct under other names. A record has no time: that of its object counts, which is when it was
# uploaded, so that requests and responses of one id are not told apart by time.

# Clients choose ids, and two requests may have the same. A request is joined with a response only if no other can be
# its response: both are the only ones of their id, or all responses are equal, or none overlap in time. Bodies lie in a
# file, as all events of lookback windows are read before the first pair is known.

_EVENTS = "org.kubeflow.serving.inference."
_RECORD = {"reqtype": "type", "id": "id", "inferenceservice": "inferenceservicename", "endpoint": "endpoint"}
"""Fields of events by those of records, in lower case and without underscores."""


@dataclass(frozen=True)
class _Event:
    """An event, and the place of its body in the file of bodies."""

    entry: LogEntry
    is_request: bool
    digest: bytes
    position: int
    is_record: bool


@dataclass(frozen=True)
class Pair:
    """A request and its response.

    Attributes:
        request: The request; None for a response without one.
        response: The response; None without one.
        number: Number of the window that found the later of both.
        where: Place of the later one.
        refusal: Why the two are left out; None if they are not.
        waits: Whether one waits for the other.
    """

    request: _Event | None
    response: _Event | None
    number: int
    where: str
    refusal: Unusable | None = None
    waits: bool = False

    @property
    def events(self) -> list[LogEntry]:
        """Entries of the events that there are."""
        return [event.entry for event in (self.request, self.response) if event is not None]

    @property
    def parts(self) -> tuple[int, ...]:
        """Positions in the plan of the parts that the events are in."""
        return tuple(part for event in self.events for part in event.parts)


class KServeEvents:
    """Joins events; their bodies are in a file until then.

    Args:
        source: The log.
        bodies: File for the bodies.
    """

    def __init__(self, source: CapturedSource, bodies: IO[bytes]) -> None:
        self._source, self._bodies = source, bodies
        self._events: dict[str, list[_Event]] = {}

    def add(self, item: LogObject) -> None:
        """Adds an event.

        Raises:
            Unusable: it is not such an event, or of another kind.
        """
        value, where = _as_event(item), item.where
        kind = str(find_field(value, "type", where))
        is_request = kind == f"{_EVENTS}request"
        if not is_request and kind != f"{_EVENTS}response":
            raise Unusable(f"an event of type {kind[:80]}", is_fault=False)
        if not is_request and self._source.mode == "inputs":
            return
        is_encoded = "data_base64" in value
        body = [value["data_base64"] if is_encoded else find_field(value, "data", where), is_encoded]
        entry = replace(
            common_entry(replace(item, value=value), self._source),
            version=name_of(value.get(str(self._source.version))),
            endpoint=name_of(find_field(value, str(self._source.endpoint_field), where)),
        )
        position = self._bodies.seek(0, 2)
        pickle.dump(body, self._bodies)
        digest = hashlib.blake2b(json.dumps(body, sort_keys=True, default=repr).encode(), digest_size=16).digest()
        self._events.setdefault(entry.request_id, []).append(
            _Event(entry, is_request, digest, position, value is not item.value)
        )

    def pairs(self) -> list[Pair]:
        """Returns the requests with their responses, also those that are left out, by the number of their window."""
        pairs = (pair for events in self._events.values() for pair in self._pairs_of_id(events))
        return sorted(pairs, key=lambda pair: pair.number)

    def entry(self, pair: Pair) -> LogEntry:
        """Returns the entry of a pair.

        Raises:
            Unusable: it is left out, or the answer has no predictions.
        """
        if pair.refusal is not None:
            raise pair.refusal
        assert pair.request is not None
        body, encoding = self._body(pair.request)
        entry = replace(
            pair.request.entry, where=pair.where, number=pair.number, inputs=body, encoding=encoding, parts=pair.parts
        )
        if pair.response is None:
            return entry
        body, encoding = self._body(pair.response)
        answer = answer_of(body, encoding, self._source, pair.response.entry.where)
        version = answer.get("model_version") if isinstance(answer, Mapping) else None
        return replace(entry, outputs=answer, version=name_of(version) or pair.response.entry.version)

    def _body(self, event: _Event) -> tuple[Any, str | None]:
        self._bodies.seek(event.position)
        body, is_encoded = pickle.load(self._bodies)
        return body, "BASE64" if is_encoded else None

    def _pairs_of_id(self, events: Sequence[_Event]) -> Iterator[Pair]:
        """Yields the pairs of an id as the windows have found them, one after the other."""
        firsts: dict[tuple[bool, bytes, int], _Event] = {}
        copies = [event for event in events if firsts.setdefault(_identity(event), event) is not event]
        waiting = list[_Event]()
        for number in sorted({event.entry.number for event in firsts.values()}):
            waiting += [event for event in firsts.values() if event.entry.number == number]
            if self._source.mode == "inputs":
                pairs, waiting = [Pair(event, None, number, event.entry.where) for event in waiting], []
            else:
                pairs, waiting = _joined(waiting, number)
            for pair in pairs:
                yield pair
                # Copies of an event make copies of its entry, which count as delivered twice.
                sides = [event for event in (pair.request, pair.response) if event is not None and not pair.refusal]
                ours = ([event for event in copies if _identity(event) == _identity(side)] for side in sides)
                for event in max(ours, key=len, default=[]):
                    yield replace(pair, number=max(number, event.entry.number), where=event.entry.where)
        for event in waiting:
            request, response = (event, None) if event.is_request else (None, event)
            refusal = Unusable("without a response" if event.is_request else "without a request", is_fault=False)
            yield Pair(request, response, event.entry.number, event.entry.where, refusal, waits=True)


def _as_event(item: LogObject) -> Mapping[str, Any]:
    """Returns a record of a store as an event, whose time is that of its object."""
    record = {str(name).replace("_", "").lower(): value for name, value in item.value.items()}
    if "type" in record or "reqtype" not in record:
        return item.value  # type: ignore[no-any-return]
    body = find_field(record, "bytes", item.where)
    event = {ours: record[theirs] for theirs, ours in _RECORD.items() if theirs in record}
    return {**event, "time": item.modified(), "data" if isinstance(body, bytes) else "data_base64": body}


def _identity(event: _Event) -> tuple[bool, bytes, int]:
    return event.is_request, event.digest, event.entry.at_us


def _joined(events: Sequence[_Event], number: int) -> tuple[list[Pair], list[_Event]]:
    """Returns the pairs of events of one id, and the events that wait for their other one."""
    in_turn = sorted(events, key=lambda event: (event.entry.at_us, not event.is_request))
    requests = [event for event in in_turn if event.is_request]
    responses = [event for event in in_turn if not event.is_request]
    if len(requests) == len(responses) and len({event.digest for event in responses}) == 1:
        return [_pair(*both, number) for both in zip(requests, responses, strict=True)], []
    pairs, waiting, orphans = list[Pair](), list[_Event](), list[_Event]()
    if max(len(requests), len(responses)) > 1 and any(event.is_record for event in events):
        return _overlapping(requests, in_turn[-1], number), responses
    for event in in_turn:
        if event.is_request:
            waiting.append(event)
        elif len(waiting) == 1:
            pairs.append(_pair(waiting.pop(), event, number))
        elif not waiting:  # its request was lost, or comes later
            orphans.append(event)
        else:
            pairs += _overlapping(waiting, event, number)
            waiting = []
    return pairs, [*waiting, *orphans]


def _overlapping(requests: Sequence[_Event], event: _Event, number: int) -> list[Pair]:
    why = Unusable(
        "of an id whose requests and responses overlap",
        f"{event.entry.where}: {len(requests)} requests of the id {shown(event.entry.request_id)} wait for a response; "
        "have clients send ids that are unique",
    )
    return [Pair(each, None, number, each.entry.where, why) for each in requests]


def _pair(request: _Event, response: _Event, number: int) -> Pair:
    later = response if response.entry.number >= request.entry.number else request
    return Pair(request, response, number, later.entry.where)
