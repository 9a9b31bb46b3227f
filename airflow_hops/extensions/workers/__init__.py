"""Several processes of the model server at the same ports: more cores of one machine."""
