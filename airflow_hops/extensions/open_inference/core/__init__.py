"""What both sides share of MLServer."""
