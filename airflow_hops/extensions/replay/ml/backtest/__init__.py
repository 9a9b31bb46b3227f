"""backtest."""
