"""Contract tests of parts of the model server (entry points ``airflow_hops.server_parts``)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

import pytest

from airflow_hops.serving.flag_parser import make_parser, parse_flags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.parts import ServerPart, server_parts


class ServerPartContract:
    """Tests that every part passes; for pytest in the runtime environment.

    Attributes:
        name: Name in the entry-point group ``airflow_hops.server_parts``.
    """

    name: ClassVar[str]

    @pytest.fixture
    def arguments(self) -> Sequence[str]:
        """Returns flags of the part, as on a command line."""
        return ()

    @pytest.fixture
    def part(self) -> ServerPart:
        return server_parts()[self.name]

    @pytest.fixture
    def flags(self, arguments: Sequence[str]) -> Flags:
        return parse_flags(["--model_base_path=/models", *arguments])[0]

    def test_flags_are_in_help(self, part: ServerPart) -> None:
        shown = make_parser().format_help()
        names = [] if part.flags is None else [each.name for each in fields(part.flags)]
        for name in names:
            assert f"--{name}" in shown
        assert part.models_flag in ("", *names)

    def test_flags_are_parsed_and_reach_other_processes(self, part: ServerPart, arguments: Any, flags: Flags) -> None:
        if part.flags is not None:
            assert (flags.of(part.flags) != part.flags()) == bool(arguments)
            assert pickle.loads(pickle.dumps(flags)).of(part.flags) == flags.of(part.flags)
        assert part.check(flags) == ""
