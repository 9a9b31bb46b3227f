"""Fixtures of pods."""

from tests.extensions.kubernetes.kubernetes_pods import pods  # noqa: F401
