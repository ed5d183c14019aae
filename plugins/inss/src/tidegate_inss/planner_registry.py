"""Planners of MPS shares by name."""

from types import MappingProxyType

from tidegate.api.late_import import imported_late

PLANNER_EXTRA = "tidegate-inss[planner]"
"""Package with extra to install for planning."""

_SUMMARIES = {
    "shares": ("planners:plan_shares", "Divides GPUs into MPS shares by the measured interference of models"),
    "inss": ("learned.planner:plan_inss", "Divides GPUs into MPS shares in milliseconds, by trained networks"),
    "inss-ni": (
        "learned.planner:plan_inss_ni",
        "inss without interference between co-located models: a baseline for inss",
    ),
    "gpulet": (
        "planners:plan_by_gpulet",
        "At most two MPS shares per GPU, time-shared by models: a baseline for shares",
    ),
    "gslice": ("planners:plan_by_gslice", "MPS shares adjusted to latency and throughput: a baseline for shares"),
    "igniter": ("planners:plan_by_igniter", "The smallest MPS shares on the fewest GPUs: a baseline for shares"),
}
SHARE_PLANNERS = MappingProxyType(
    {
        name: (summary, imported_late(f"tidegate_inss.{place}", PLANNER_EXTRA))
        for name, (place, summary) in _SUMMARIES.items()
    }
)
"""Summary and function (`tidegate.api.planner.Planner`) of each planner; its module is imported when it runs."""
