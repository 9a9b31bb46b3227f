"""Sources and properties of tables, for both environments."""
