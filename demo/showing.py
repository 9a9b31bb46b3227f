"""The common part of the demos: arguments, the services that they run on, and the end of a showing."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from demo.airflow_api import AirflowApi
from demo.follow import RunFailed
from demo.production import Production
from demo.services import REPOSITORY, ServiceFailed, Stack

LOG_WIDTH = 140


@dataclass(frozen=True)
class Ending:
    """The last words of a showing.

    Attributes:
        dag_id: The pipeline, to whose page the last line leads.
        story: What happened, a line each.
        print_tables: Prints all the figures.
        asked_s: Seconds for which live requests were made.
    """

    dag_id: str
    story: Sequence[str]
    print_tables: Callable[[Console], None]
    asked_s: float = 0


def arguments(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The arguments of every demo."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--home", type=Path, default=REPOSITORY / ".hops", help="folder of all the demo's state")
    parser.add_argument("--runtime", type=Path, default=REPOSITORY / ".venv-runtime", help="runtime environment")
    parser.add_argument(
        "--exit",
        action="store_true",
        default=os.environ.get("HOPS_DEMO_EXIT", "") not in ("", "0"),
        help="exit at the end instead of serving the web UI until Ctrl-C (or HOPS_DEMO_EXIT=1)",
    )
    parser.add_argument("--verbose", action="store_true", help="also print the tables that are written to a file")
    return parser


def show(given: argparse.Namespace, perform: Callable[[Stack, AirflowApi, Console], Ending]) -> int:
    """Starts the services, shows what there is to see, and serves the web UI until Ctrl-C.

    Args:
        given: The arguments.
        perform: The showing, on running services; returns what is to be told of it.

    Returns:
        The exit code.
    """
    # Also where the shell that started this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A log has no width of its own; 80 columns would tear the tables apart.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    began = time.monotonic()
    home, services = given.home.resolve(), Stack
    if os.environ.get("HOPS_DEMO_PRODUCTION", "") not in ("", "0"):
        home, services = home / "production", Production
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
    forget_serving(home)
    try:
        with services(home, given.runtime.resolve(), REPOSITORY / "dags", lambda text: console.print(text)) as stack:
            console.print("[bold]Starting Airflow and the model server[/bold]")
            api = stack.start()
            console.print(f"ready after {time.monotonic() - began:.1f} s")
            ending = perform(stack, api, console)
            tell(ending, console, home, given.verbose, time.monotonic() - began)
            if not given.exit:
                page = f"{api.url}/plugin/hops/overview?dag={ending.dag_id}"
                console.print(f"\nSee it at [bold]{page}[/bold] until you press Ctrl-C.", soft_wrap=True)
                while True:
                    for service in stack.services:
                        service.check()
                    time.sleep(1)
    except KeyboardInterrupt:
        console.print("\nstopped")
        return 130
    except (RunFailed, ServiceFailed, TimeoutError, httpx.HTTPError) as error:
        console.print(f"\n[bold red]The demo failed.[/bold red]\n{error}", markup=not isinstance(error, RunFailed))
        return 1
    return 0


def tell(ending: Ending, console: Console, home: Path, verbose: bool, seconds: float) -> None:
    """Prints the story, and writes the tables to a file that its last line names.

    Args:
        ending: What is told.
        console: Where the story goes.
        home: Folder of the demo's state, and of the file.
        verbose: Whether the tables are printed, too.
        seconds: How long it all took.
    """
    path = home / f"{ending.dag_id}.txt"
    with path.open("w") as stream:
        ending.print_tables(Console(file=stream, width=LOG_WIDTH, highlight=False))
    if verbose:
        ending.print_tables(console)
    console.print()
    asked = f" ({ending.asked_s:.0f} s of them live requests)" if ending.asked_s else ""
    for line in (*ending.story, f"All figures of these {seconds:.0f} s{asked}: {path}"):
        console.print(line, soft_wrap=True)


def forget_serving(home: Path) -> None:
    """Clears what an earlier showing served; its artifacts stay, and what is unchanged is not redone.

    So do MLflow's runs and versions: a training whose model is taken from the cache is not tracked again.
    """
    for name in ("serving", "store/_models", "store/_state"):
        shutil.rmtree(home / name, ignore_errors=True)
