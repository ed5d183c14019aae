"""Control at run time: a controller says what is to be loaded where, and a governor lets that come about, or not.

controller   what a plugin writes: from observations to layouts: BEGIN HERE
observation  what a controller is told; monitor: the fold of the stream that it comes from
settings     how a scenario or a configuration names a controller, and its limits
loop         what drivers call: asks the controller, has the governor judge, and brings a change about
  governor   which layouts are refused, and why
  change     one change, from the first worker that starts to the last one that has drained
  orders     what a driver has to do for it
roster       a layout with its workers' ids, and which of them the next layout keeps
rates        whose rates a controller plans for, and when they have drifted
capacity     what a layout bears, and how much of the GPUs it takes
"""

from tidegate.control.change import Change
from tidegate.control.controller import Controller, ControllerOptions, ControllerSpec
from tidegate.control.governor import Governor
from tidegate.control.loop import Answer, ControlLoop
from tidegate.control.monitor import Monitor
from tidegate.control.observation import ModelLoad, Observation
from tidegate.control.orders import AskController, Order, StartWorker, StopWorker, Switch
from tidegate.control.roster import Roster
from tidegate.control.settings import ControllerChoice

__all__ = [
    "Answer",
    "AskController",
    "Change",
    "ControlLoop",
    "Controller",
    "ControllerChoice",
    "ControllerOptions",
    "ControllerSpec",
    "Governor",
    "ModelLoad",
    "Monitor",
    "Observation",
    "Order",
    "Roster",
    "StartWorker",
    "StopWorker",
    "Switch",
]
