"""``python -m airflow_hops.serving``: the bundled model server's command line."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.metadata import version

from airflow_hops import __version__
from airflow_hops.serving import log_lines
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.keras_import import without_keras
from airflow_hops.serving.parts import server_parts


def main() -> int:
    """Runs the server; returns its exit status."""
    flags, notes = parse_flags(sys.argv[1:])
    for note in notes:
        print(note, file=sys.stderr, flush=True)
    if flags.version:
        print(f"airflow-hops model server: {__version__}\nTensorFlow Library: {version('tensorflow')}")
        return 0
    try:
        log_lines.configure(flags.log_file)
    except OSError as error:
        print(f"airflow_hops.serving: --log_file={flags.log_file}: {error.strerror}", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore", category=FutureWarning, module="google")

    from airflow_hops.serving.errors import StartError

    try:
        for part in server_parts().values():
            if (status := part.run(flags)) is not None:
                return status
        if not flags.models_flag:
            with without_keras():
                import airflow_hops.serving.models.saved_model  # noqa: F401  # it takes no time of the first to load

        from airflow_hops.serving.server import BundledServer

        BundledServer(flags).run()
    except StartError as error:
        print(f"airflow_hops.serving: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow 2.16: a shutdown of the interpreter can crash while its threads still load a version.
    os._exit(status)
