"""The page of a pipeline's feature store."""

from airflow_hops.extensions.feature_store.web import routes
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.pages import STATIC

PAGE = ExtensionPage(
    router=routes.router, bundle=STATIC / "feature_store.umd.js", destination="pipeline", label="Features"
)
