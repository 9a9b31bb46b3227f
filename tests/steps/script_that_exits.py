"""A script that gives up."""

import sys

sys.exit(3)
