"""Data files and their features, for the user library and the stages."""

from airflow_hops.core.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # reading a file must not run code
