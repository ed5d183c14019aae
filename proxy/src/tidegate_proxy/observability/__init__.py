"""Metrics, statistics as Triton reports them, traces and logs. The driver calls `observability`.

`exposition` renders metrics of `metrics_registry`; `merged_statistics` adds up ModelStatistics; `triton_metrics` merges
Tritons' pages; `accounts` divides worker time among tenants; `tracing` and
`logs` write spans and lines.
"""
