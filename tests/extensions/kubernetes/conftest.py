"""Fixtures of pods."""

from tests.extensions.kubernetes.kubernetes_pods import pods  # noqa: F401
from tests.test_image_builds import node  # noqa: F401
