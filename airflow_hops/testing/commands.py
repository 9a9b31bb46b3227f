"""Contract tests of commands, for pytest in Airflow's environment."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from airflow_hops.cli.arguments import CLICommand, GroupCommand
from airflow_hops.core.extensions import COMMANDS, extensions, load_extension

_SLOW = ("airflow_hops.connections", "grpc", "numpy", "pandas", "sqlalchemy.orm")
_IMPORTED = """
import sys
import airflow.cli.cli_config
import airflow_hops.cli.definition
before = set(sys.modules)
__import__(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""


class CommandsContract:
    """Tests that all commands pass; a subclass names them.

    Attributes:
        name: Name in the entry-point group ``airflow_hops.commands``.
    """

    name: ClassVar[str]

    def test_each_command_has_help_and_arguments(self) -> None:
        commands = list(_actions(load_extension(COMMANDS, self.name)))
        assert commands
        for command in commands:
            parser = ArgumentParser(prog=command.name)
            for argument in command.args:
                argument.add_to_parser(parser)
            assert command.help and callable(command.func)
            assert parser.format_help()

    def test_the_definition_imports_nothing_slow(self) -> None:
        """Airflow's CLI imports it at each start."""
        module = extensions(COMMANDS)[self.name].value.partition(":")[0]
        result = subprocess.run([sys.executable, "-c", _IMPORTED, module], capture_output=True, text=True, check=True)
        assert not set(result.stdout.split()) & set(_SLOW)


def _actions(commands: Sequence[CLICommand]) -> Iterator[Any]:
    for command in commands:
        if isinstance(command, GroupCommand):
            yield from _actions(tuple(command.subcommands))
        else:
            yield command
