"""Tables on Airflow's side: queries, states and writes with the hooks of providers."""
