"""The library that user code imports in the runtime environment."""

from airflow_hops.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # no file that is read may run code
