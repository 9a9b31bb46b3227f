"""Files that steps write for the web pages (:mod:`airflow_hops.core.contract.page_files`)."""
