"""The ML side: every stage as plain functions, and as steps that an operator starts in the runtime environment."""

from airflow_hops.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()
