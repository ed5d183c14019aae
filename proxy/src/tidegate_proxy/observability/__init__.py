"""What operators see: metrics, statistics as Triton keeps them, traces, logs. `observability` is told by the driver."""
