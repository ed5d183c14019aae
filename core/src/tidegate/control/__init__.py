"""Controllers at run time: a controller decides what is loaded where; a governor permits or rejects each change.

controller       the base class of plugins: observations in, layouts out: BEGIN HERE
monitor          computes observations from the event stream
settings         how a scenario or a configuration names a controller, and its limits; options that a
                 tuner may replace while serving
loop             the interface of drivers: asks the controller and the governor, and carries out a layout_change
  governor       which layouts are rejected, and why
  layout_change  one change, from the first worker that starts to the last one that has drained; its actions
layout_revision  a layout with its workers' ids, and which of them the next layout keeps
rates            the rates that a controller plans for, and when they have drifted
capacity         the rate that a layout serves, and the GPUs that it uses
concurrency_limit  how many streams of a model a server runs at once, found by their throughput
residency        which models a Triton keeps in memory, and which one goes for another
"""

from tidegate.control.controller import (
    Controller,
    ControllerAnswer,
    ControllerOptions,
    ControllerSpec,
    LayoutSteps,
    ModelLoad,
    Observation,
    controller_answer,
)
from tidegate.control.governor import Governor
from tidegate.control.layout_change import Action, LayoutChange, QueryController, StartWorker, StopWorker, Switch
from tidegate.control.layout_revision import LayoutRevision
from tidegate.control.loop import ControlLoop
from tidegate.control.monitor import Monitor
from tidegate.control.settings import ControllerChoice

__all__ = [
    "Action",
    "ControlLoop",
    "Controller",
    "ControllerAnswer",
    "ControllerChoice",
    "ControllerOptions",
    "ControllerSpec",
    "Governor",
    "LayoutChange",
    "LayoutRevision",
    "LayoutSteps",
    "ModelLoad",
    "Monitor",
    "Observation",
    "QueryController",
    "StartWorker",
    "StopWorker",
    "Switch",
    "controller_answer",
]
