"""The web API that the plugin mounts in Airflow's API server, under ``/hops``."""
