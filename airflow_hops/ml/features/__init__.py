"""Data files and their features, for the library for user code and for the stages."""

from airflow_hops.core.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # no file that is read may run code
