"""Files of data, and the features in them: what the library for user code and the stages both read with."""

from airflow_hops.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # no file that is read may run code
