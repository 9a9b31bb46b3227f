"""Steps: the protocol with a step's process, their cache, jobs and records."""
