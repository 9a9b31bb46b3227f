"""The bundled model server: TensorFlow Serving's API, with a traffic split and request capture.

Start it with ``python -m airflow_hops.serving`` in the runtime environment. This package belongs to the ML side: it
never imports Airflow. What talks to the server, or writes what it reads, is :mod:`airflow_hops.serving_api`.
"""
