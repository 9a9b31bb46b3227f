"""Models: found on disk, loaded, called, unloaded."""

import os

# Else its import writes a file of a fixed name into the temporary folder, through another user's link if one is there.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
