"""Steps as pods: the launcher, the pods' manifests, the process of a pod, and the program in the pod.

Only :mod:`~airflow_hops.extensions.kubernetes.runner.in_pod` is imported in the pod. The other modules need
``apache-airflow-providers-cncf-kubernetes``, the extra ``kubernetes`` of this distribution.
"""
