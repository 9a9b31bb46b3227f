"""Routes of TensorBoard, and the processes behind them."""
