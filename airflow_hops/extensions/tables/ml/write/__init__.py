"""Writers of a table's batch, one module for each kind of table."""
