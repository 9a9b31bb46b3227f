"""The ML side: every stage as plain functions, and as steps that an operator starts in the runtime environment."""
