"""The bundled model server: TensorFlow Serving's API, with a traffic split and request capture.

``airflow hops serve`` starts it (``python -m airflow_hops.serving``) in the runtime environment. This package belongs
to the ML side: it never imports Airflow. What talks to the server, or writes what it reads, is
:mod:`airflow_hops.core.serving_api`.
"""

from airflow_hops.core.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # no file that is read may run code
