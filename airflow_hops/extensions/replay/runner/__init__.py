"""Back-tests on Airflow's side: the recorded steps of a pipeline, and their replay."""
