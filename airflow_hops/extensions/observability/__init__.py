"""The last hour of the model server's requests, and its log, over REST: Airflow's pages show them."""
