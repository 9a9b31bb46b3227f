"""TensorBoard of a training behind Airflow's login, started when somebody looks at it."""
