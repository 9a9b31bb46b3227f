"""The hook of the connection type ``hops``, as Airflow's form of connections knows it."""

from __future__ import annotations

from airflow_hops.core.errors import HopsError, StoreAway
from airflow_hops.core.store.files import reaching_store
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.settings import CONN_TYPE


class HopsHook(RuntimeHook):
    """Connection type ``hops``: the artifact store, the runtime environment, MLflow and the model server."""

    conn_type = CONN_TYPE
    hook_name = "Hops"

    def check_store(self) -> None:
        """Lists the store's folder.

        Raises:
            StoreAway: it is not there, but can be made.
            HopsError: it cannot be reached, or is not there and cannot be made.
        """
        store = self.open_store()
        with reaching_store(store.root):
            store.files.check()
            store.check()

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether the store can be reached and the model server answers, and its models, or the error."""
        state = f"Store {self.settings.store} can be reached"
        try:
            self.check_store()
        except StoreAway as error:
            state = str(error)
        except HopsError as error:
            return False, str(error)
        works, message = ModelServerHook(self.hops_conn_id).test_connection()
        return works, f"{state}. {message}"
