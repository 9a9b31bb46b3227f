"""Directives that write reference pages from the code: commands, flags, connections, options, routes.

``{hops-commands}``, ``{hops-flags}``, ``{hops-connection} TYPE``, ``{hops-options}``, ``{hops-routes}`` and
``{hops-stability}``.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.cli.cli_config import GroupCommand
from airflow.cli.cli_parser import _add_command
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import airflow_hops
import airflow_hops.extensions
from airflow_hops.cli.definition import get_hops_cli_commands
from airflow_hops.provider_info import provider_info
from airflow_hops.serving.flag_parser import make_parser

OPENAPI = Path(__file__).resolve().parent.parent / "ui" / "openapi.json"
PACKAGE = Path(airflow_hops.__file__).parent


class Generated(SphinxDirective):
    """A directive whose content is MyST that :meth:`lines` makes."""

    def run(self) -> list[nodes.Node]:
        """The parsed nodes."""
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)

    def lines(self) -> Iterator[str]:
        """Lines of MyST."""
        raise NotImplementedError


class Commands(Generated):
    """``airflow hops``, command by command, from the parser that Airflow gets."""

    def lines(self) -> Iterator[str]:
        """A section for each command."""
        (group,) = get_hops_cli_commands()
        parser = argparse.ArgumentParser(prog="airflow hops")
        commands = parser.add_subparsers()
        for command in group.subcommands:
            _add_command(commands, command)
            if isinstance(command, GroupCommand):
                for verb in command.subcommands:
                    yield from self.section(_parser(_parser(parser, command.name), verb.name))
            else:
                yield from self.section(_parser(parser, command.name))

    def section(self, parser: argparse.ArgumentParser) -> Iterator[str]:
        """One command: its purpose, its usage, its arguments."""
        yield from [f"## `{parser.prog}`", "", parser.description or "", ""]
        usage = re.sub(r"\s+", " ", parser.format_usage().partition(": ")[2])
        lines = textwrap.wrap(usage, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        yield from ["```text", *lines, "```", ""]
        yield from arguments(action for action in parser._actions if action.dest != "help")


class Flags(Generated):
    """The model server's flags, by the groups of ``--help``."""

    def lines(self) -> Iterator[str]:
        """A section for each group."""
        for group in make_parser()._action_groups:
            if shown := [action for action in group._group_actions if action.dest != "help"]:
                title = str(group.title)
                yield from [f"## {title[0].upper()}{title[1:]}", ""]
                yield from arguments(shown)


def arguments(actions: Iterator[argparse.Action] | list[argparse.Action]) -> Iterator[str]:
    """A definition list of arguments."""
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
        default = action.default
        shown = default not in (None, "", False, [], argparse.SUPPRESS) and "default" not in str(action.help)
        yield from [names, f": {_text(str(action.help or ''))}{f' (default: `{default}`)' if shown else ''}", ""]


class Connection(Generated):
    """The fields of a connection type."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """A table: label, place in the JSON, meaning."""
        (found,) = [
            each for each in provider_info()["connection-types"] if each["connection-type"] == self.arguments[0]
        ]
        form = found["ui-field-behaviour"]
        yield from ["| field | in JSON | meaning |", "|---|---|---|"]
        for name, default in form["placeholders"].items():
            label = form["relabeling"].get(name, name.capitalize())
            yield f"| {label} | `{name}` | Empty: {default} |"
        for name, field in found["conn-fields"].items():
            yield f"| {field['label']} | extra `{name}` | {_text(field['description'])} |"


class Options(Generated):
    """The options of ``[hops]``."""

    def lines(self) -> Iterator[str]:
        """A definition for each option."""
        for name, option in provider_info()["config"]["hops"]["options"].items():
            default = f" Default: `{option['default']}`." if option["default"] else ""
            yield from [f"`{name}`", f": {_text(option['description'])}{default}", ""]


class Routes(Generated):
    """The web API's routes, from its OpenAPI document."""

    def lines(self) -> Iterator[str]:
        """A definition list for each subject."""
        subjects: dict[str, list[str]] = {}
        for path, methods in json.loads(OPENAPI.read_text())["paths"].items():
            for method, route in methods.items():
                does = str(route.get("description", "")).split("\n\n")[0].replace("\n", " ")
                parameters = [f"`{each['name']}`" for each in route.get("parameters", []) if each["in"] == "query"]
                named = f" Parameters: {', '.join(parameters)}." if parameters else ""
                listed = subjects.setdefault((route.get("tags") or ["other"])[0], [])
                listed += [f"`{method.upper()} {path}`", f": {_text(does)}{named}", ""]
        for subject, listed in subjects.items():
            yield from [f"### {subject.capitalize()}", "", *listed]


class Stability(Generated):
    """The mark of stability of each public name."""

    def lines(self) -> Iterator[str]:
        """A row for each package and mark."""
        yield from ["| package | mark | names |", "|---|---|---|"]
        for package, names in public_names().items():
            marks: dict[str, list[str]] = {}
            for name, mark in names.items():
                marks.setdefault(mark, []).append(f"`{name}`")
            yield from (f"| `{package}` | {mark} | {', '.join(named)} |" for mark, named in marks.items())


def marked_names() -> dict[str, str]:
    """Returns the names that have a decorator of stability, with their marks: from the source, as no side has all."""
    marks: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        if "core.stability import" in (text := path.read_text()):
            for node in ast.parse(text).body:
                for each in node.decorator_list if isinstance(node, ast.ClassDef | ast.FunctionDef) else ():
                    marks |= {node.name: mark} if (mark := _mark(each)) else {}
    return marks


def public_names() -> dict[str, dict[str, str]]:
    """Returns the public names of each package with their marks."""
    marks, folders = marked_names(), sorted((PACKAGE / "extensions").glob("*/__init__.py"))
    packages = [airflow_hops, airflow_hops.extensions]
    packages += [import_module(f"airflow_hops.extensions.{path.parent.name}") for path in folders]
    public = {package.__name__: getattr(package, "__all__", ()) for package in packages}
    return {package: {name: marks.get(name, "stable") for name in names} for package, names in public.items()}


def _mark(decorator: ast.expr) -> str | None:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "deprecated":
        return f"deprecated, for {ast.literal_eval(decorator.args[2])}"
    return "experimental" if ast.unparse(decorator) == "experimental" else None


def _parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """A command of a parser's."""
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = commands.choices[name]
    return found


def _text(text: str) -> str:
    """Docstring marks and angle brackets, as MyST takes them."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).replace("<", "\\<").replace("|", "\\|").replace("%%", "%")


def plain_defaults(app: Sphinx, what: str, name: str, object_: Any, options: Any, signature: str, returns: str) -> Any:
    """Shows a default that is made anew for each object, or is a function, as three dots."""
    return re.sub(r"<[^>]+>+", "...", signature or "").replace("~typing.", "") or signature, returns


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Writes ``llms.txt``, the list of pages with their first sentences, beside them (https://llmstxt.org)."""
    if error is None:
        lines = [f"# {app.config.project}", ""]
        for name in sorted(app.env.all_docs):
            paragraph = next(iter(app.env.get_doctree(name).findall(nodes.paragraph)), None)
            about = "" if paragraph is None else f": {paragraph.astext().partition('. ')[0]}".replace("\n", " ")
            lines.append(f"- [{app.env.titles[name].astext()}]({name}.html){about}")
        (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directives."""
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("build-finished", write_llms_txt)
    for name, directive in {
        "hops-commands": Commands,
        "hops-flags": Flags,
        "hops-connection": Connection,
        "hops-options": Options,
        "hops-routes": Routes,
        "hops-stability": Stability,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True}
