# The Airflow side, on top of the ML side: steps run on the worker's own machine, so a worker needs both environments.
#   docker build -f docker/airflow.Dockerfile -t airflow-hops .

ARG RUNTIME_IMAGE=airflow-hops-runtime

FROM node:22-bookworm-slim AS pages
WORKDIR /src/ui
COPY ui/package.json ui/package-lock.json ui/.npmrc ./
RUN npm ci
COPY ui ./
RUN npm run build

FROM ${RUNTIME_IMAGE}
USER root
WORKDIR /src
COPY requirements requirements
COPY airflow_hops airflow_hops
COPY --from=pages /src/airflow_hops/api/static airflow_hops/api/static
COPY scripts/build_ui.py scripts/
COPY pyproject.toml hatch_build.py README.md LICENSE ./
# The pins as constraints: they hold the tools of development too, which an image does not need.
RUN pip install --no-cache-dir "$(grep '^uv==' requirements/airflow.txt)" \
    && uv venv --python /usr/local/bin/python3.11 /opt/airflow-environment \
    && uv pip install --no-cache --compile-bytecode --python /opt/airflow-environment/bin/python \
        --constraints requirements/airflow.txt ".[s3]" \
    && install --directory --owner hops /opt/airflow /opt/airflow/dags \
    && rm -rf /src/*
ENV PATH=/opt/airflow-environment/bin:$PATH \
    PYTHONPATH= \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__HOPS__RUNTIME=/opt/hops-runtime \
    AIRFLOW__HOPS__STORE=/var/lib/hops/store
USER 50000
WORKDIR /opt/airflow
EXPOSE 8080
ENTRYPOINT ["airflow"]
CMD ["standalone"]
