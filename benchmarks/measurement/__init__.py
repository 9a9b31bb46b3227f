"""How the benchmarks measure: process trees, DAG runs, and the peers."""
