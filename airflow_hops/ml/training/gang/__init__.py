"""A gang of ranks on one or many hosts: started together, watched, and ended together."""

from airflow_hops.ml.training.gang.crew import Channel, Crew, Event, Placement, RankJob, RankLauncher, Work, place
from airflow_hops.ml.training.gang.forked import LocalRanks
from airflow_hops.ml.training.gang.supervisor import run_gang

__all__ = [
    "Channel",
    "Crew",
    "Event",
    "LocalRanks",
    "Placement",
    "RankJob",
    "RankLauncher",
    "Work",
    "place",
    "run_gang",
]
