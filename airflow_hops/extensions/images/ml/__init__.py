"""Images in the runtime environment: plans, decoding, and samples in shards."""
