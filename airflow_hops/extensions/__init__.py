"""Extensions for special needs. Each folder can be removed: the rest of the package does not import it.

The names here are for extensions of other distributions: interfaces that they implement, and functions that they call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.cli.arguments import STORE_CONNECTION as STORE_CONNECTION
    from airflow_hops.cli.arguments import command as command
    from airflow_hops.cli.arguments import option as option
    from airflow_hops.core.artifacts.artifact import Producer as Producer
    from airflow_hops.core.prepare.engines import PrepareEngine as PrepareEngine
    from airflow_hops.core.serving_api.server_kinds import ModelServerKind as ModelServerKind
    from airflow_hops.core.sources.sources import RowSource as RowSource
    from airflow_hops.core.training.rank_places import RankConnection as RankConnection
    from airflow_hops.core.training.rank_places import RankPlace as RankPlace
    from airflow_hops.ml.ingest.files import copy_files as copy_files
    from airflow_hops.ml.ingest.reader import Reader as Reader
    from airflow_hops.ml.model_server.server import ModelServer as ModelServer
    from airflow_hops.ml.models.frameworks import Framework as Framework
    from airflow_hops.ml.models.frameworks import Written as Written
    from airflow_hops.ml.prepare.engine import EngineRows as EngineRows
    from airflow_hops.ml.prepare.engine import PreparedRows as PreparedRows
    from airflow_hops.ml.spark.pools import IN_PROCESS as IN_PROCESS
    from airflow_hops.ml.step.context import Stage as Stage
    from airflow_hops.ml.training.digests import digest as digest
    from airflow_hops.ml.training.gang.crew import Channel as Channel
    from airflow_hops.ml.training.gang.crew import Placement as Placement
    from airflow_hops.ml.training.gang.crew import RankLauncher as RankLauncher
    from airflow_hops.ml.training.gang.rendezvous import SharedValues as SharedValues
    from airflow_hops.ml.training.stage.rank_group import RankGroup as RankGroup
    from airflow_hops.operators.training import RanksTrainOperator as RanksTrainOperator
    from airflow_hops.runner.launchers.base import Launcher as Launcher
    from airflow_hops.runner.launchers.local import runtime_python as runtime_python
    from airflow_hops.runner.launchers.local import step_variables as step_variables
    from airflow_hops.runner.launchers.process import Deferral as Deferral
    from airflow_hops.runner.launchers.process import StepProcess as StepProcess
    from airflow_hops.runner.sources import Planner as Planner
    from airflow_hops.runner.sources import Planning as Planning
    from airflow_hops.serving.flags import flag as flag
    from airflow_hops.serving.models.formats import ModelFormat as ModelFormat
    from airflow_hops.serving.parts import ServerPart as ServerPart
    from airflow_hops.web.access import READS_ARTIFACTS as READS_ARTIFACTS
    from airflow_hops.web.extension_pages import ExtensionPage as ExtensionPage

_MODULES = {
    "airflow_hops.cli.arguments": "STORE_CONNECTION command option",
    "airflow_hops.core.artifacts.artifact": "Producer",
    "airflow_hops.core.sources.sources": "RowSource",
    "airflow_hops.core.prepare.engines": "PrepareEngine",
    "airflow_hops.core.training.rank_places": "RankConnection RankPlace",
    "airflow_hops.core.serving_api.server_kinds": "ModelServerKind",
    "airflow_hops.runner.sources": "Planner Planning",
    "airflow_hops.runner.launchers.base": "Launcher",
    "airflow_hops.runner.launchers.local": "runtime_python step_variables",
    "airflow_hops.runner.launchers.process": "Deferral StepProcess",
    "airflow_hops.ml.model_server.server": "ModelServer",
    "airflow_hops.ml.models.frameworks": "Framework Written",
    "airflow_hops.ml.spark.pools": "IN_PROCESS",
    "airflow_hops.ml.ingest.files": "copy_files",
    "airflow_hops.ml.ingest.reader": "Reader",
    "airflow_hops.ml.prepare.engine": "EngineRows PreparedRows",
    "airflow_hops.ml.training.stage.rank_group": "RankGroup",
    "airflow_hops.ml.step.context": "Stage",
    "airflow_hops.ml.training.digests": "digest",
    "airflow_hops.ml.training.gang.crew": "Channel Placement RankLauncher",
    "airflow_hops.ml.training.gang.rendezvous": "SharedValues",
    "airflow_hops.operators.training": "RanksTrainOperator",
    "airflow_hops.serving.flags": "flag",
    "airflow_hops.serving.models.formats": "ModelFormat",
    "airflow_hops.serving.parts": "ServerPart",
    "airflow_hops.web.access": "READS_ARTIFACTS",
    "airflow_hops.web.extension_pages": "ExtensionPage",
}
__all__ = sorted(name for names in _MODULES.values() for name in names.split())
__getattr__ = lazy_names(__name__, _MODULES)
