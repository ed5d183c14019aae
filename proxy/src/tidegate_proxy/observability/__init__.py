"""Metrics, statistics as Triton reports them, traces and logs. The driver calls `metrics`.

`metrics` counts, and `metrics_registry` exports; `model_statistics` keeps and merges ModelStatistics; `exposition` and
`triton_metrics` merge the Tritons' pages; `accounts` divides worker time among tenants; `tracing` and `logs` write
spans and lines.
"""
