"""Has each program of Airflow's that a test starts look for garbage as rarely as the tests do.

Python imports it where this folder is on the ``PYTHONPATH``. Importing Airflow makes no garbage, but objects by the
hundred thousand, which Python would look at again and again.
"""

import gc

gc.set_threshold(20_000, 20, 20)
