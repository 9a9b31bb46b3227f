# The ML side: TensorFlow, TFDV, Horovod, Spark and MLflow from requirements/runtime.txt, and the model server as the
# entry point. Build from the root of the checkout:
#   docker build -f docker/runtime.Dockerfile -t airflow-hops-runtime .

FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements requirements
RUN pip install --no-cache-dir "$(grep '^uv==' requirements/airflow.txt)"
COPY airflow_hops airflow_hops
RUN python -c "from pathlib import Path; from airflow_hops.environments import create_environment as create; \
create(Path('/opt/hops-runtime'), Path('requirements/runtime.txt').absolute(), uv='uv')"

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 50000 hops \
    && install --directory --owner hops /var/lib/hops
COPY --from=build /opt/hops-runtime /opt/hops-runtime
COPY airflow_hops /opt/hops-code/airflow_hops
ENV PYTHONPATH=/opt/hops-code
USER 50000
WORKDIR /var/lib/hops
EXPOSE 8500 8501
ENTRYPOINT ["/opt/hops-runtime/bin/python", "-m", "airflow_hops.serving"]
CMD ["--host=0.0.0.0", "--port=8500", "--rest_api_port=8501", "--model_name=model", "--model_base_path=/models/model"]
