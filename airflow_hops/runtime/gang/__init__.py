"""A gang of ranks: started together wherever they are, watched, and ended together."""

from airflow_hops.runtime.gang.crew import Crew, Event, RankJob, RankLauncher, Work
from airflow_hops.runtime.gang.local import LocalRanks
from airflow_hops.runtime.gang.placement import Host, Placement, place
from airflow_hops.runtime.gang.rank import Channel
from airflow_hops.runtime.gang.supervisor import run_gang

__all__ = [
    "Channel",
    "Crew",
    "Event",
    "Host",
    "LocalRanks",
    "Placement",
    "RankJob",
    "RankLauncher",
    "Work",
    "place",
    "run_gang",
]
