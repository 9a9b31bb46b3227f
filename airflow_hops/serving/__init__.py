"""The bundled model server: TensorFlow Serving's API, with a traffic split and request capture.

``airflow hops serve`` (``python -m airflow_hops.serving``) starts it in the runtime environment. This package belongs
to the ML side and never imports Airflow. Clients of the server, and writers of its files, use
:mod:`airflow_hops.core.serving_api`.
"""

from airflow_hops.core.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()  # pickled Arrow types could run code
