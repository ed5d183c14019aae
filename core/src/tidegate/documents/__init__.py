"""The files that distributions hand each other: versioned documents that people can read and diff.

document       JSON or YAML in, JSON out
layout         what is loaded where: planners make it, the generator, the simulator and the proxy read it
demand         which models are asked for how often, on which GPUs: planners make their problems of it
assignment     which model is whose: what a server reads of a plan of sub-clusters
deployment     what the generator wrote: model repositories and the processes that serve them
profile_file   how long models run, as measured; hardware: on what; this_machine: what is here
interference   what models take on shares of one GPU, and by how much neighbours there make that longer
emulated_neighbours  what emulated GPUs of a deployment are told of it
struct_field   nouns of the contract as fields of a document
from_file      documents as fields of options, given as they are or by their paths
no_yaml        what is wrong with a text that is no YAML
own_batching   how Triton batches a model by itself, as its config.pbtxt and as options of `triton`
request_sizes  how many requests have how many rows, as observed
shape_text     the shapes of requests, by which profiles are kept, in words
wrong_fields   what is wrong with a document, field by field, in words
wrong_value    what is wrong with a value, in words
did_you_mean   what somebody may have meant who wrote a name that there is not
block_profile  how long the blocks of a model run, as measured: what planners of partitions read
"""

from tidegate.api.device import DEFAULT_KIND, Device, Mig, Mps, Slice, WholeDevice, compute_percent, mig_instance
from tidegate.api.interference import Interference, Tenant
from tidegate.api.mig import MIG_GEOMETRIES, MigGeometry, MigProfile, mig_geometries
from tidegate.documents.assignment import Assignment
from tidegate.documents.block_profile import BlockLatencies, BlockProfile
from tidegate.documents.demand import Demand, DemandedModel
from tidegate.documents.deployment import (
    DEPLOYMENT_FILE,
    LAYOUT_FILE,
    PROXY_FILE,
    RUN_FOLDER,
    STATE_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    device_variable,
    read_deployment,
)
from tidegate.documents.did_you_mean import did_you_mean
from tidegate.documents.document import DocumentError, read_document, write_document
from tidegate.documents.emulated_neighbours import INTERFERENCE_FILE, NEIGHBOURS, neighbours_parameter
from tidegate.documents.from_file import FromFile
from tidegate.documents.hardware import Hardware
from tidegate.documents.interference import (
    Alone,
    HeldOut,
    InterferenceModel,
    Line,
    Sensitivity,
    ShareTable,
    SharingModel,
)
from tidegate.documents.layout import Layout, LayoutModel, LayoutNetwork, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate.documents.no_yaml import no_yaml
from tidegate.documents.own_batching import (
    dynamic_batching_of,
    options_of,
    options_of_model,
    section_text,
    tuned_settings,
)
from tidegate.documents.profile_file import (
    ModelProfile,
    Point,
    ProfileFile,
    ProfileFileError,
    read_profiles,
    write_profile,
)
from tidegate.documents.request_sizes import RequestSizes
from tidegate.documents.shape_text import read_shape, shape_text
from tidegate.documents.this_machine import hardware_here
from tidegate.documents.wrong_fields import WHOLE, WrongField, in_lines, wrong_fields
from tidegate.documents.wrong_value import in_our_words

__all__ = [
    "DEFAULT_KIND",
    "DEPLOYMENT_FILE",
    "INTERFERENCE_FILE",
    "LAYOUT_FILE",
    "MIG_GEOMETRIES",
    "NEIGHBOURS",
    "PROXY_FILE",
    "RUN_FOLDER",
    "STATE_FILE",
    "WHOLE",
    "Alone",
    "Assignment",
    "BlockLatencies",
    "BlockProfile",
    "Demand",
    "DemandedModel",
    "DeployedPartition",
    "DeployedWorker",
    "Deployment",
    "Device",
    "DocumentError",
    "FromFile",
    "Hardware",
    "HeldOut",
    "Interference",
    "InterferenceModel",
    "Layout",
    "LayoutModel",
    "LayoutNetwork",
    "LayoutPartition",
    "LayoutPipeline",
    "LayoutWorker",
    "Line",
    "Mig",
    "MigGeometry",
    "MigProfile",
    "ModelProfile",
    "Mps",
    "Point",
    "ProfileFile",
    "ProfileFileError",
    "RequestSizes",
    "Sensitivity",
    "ShareTable",
    "SharingModel",
    "Slice",
    "Tenant",
    "WholeDevice",
    "WrongField",
    "compute_percent",
    "device_variable",
    "did_you_mean",
    "dynamic_batching_of",
    "hardware_here",
    "in_lines",
    "in_our_words",
    "mig_geometries",
    "mig_instance",
    "neighbours_parameter",
    "no_yaml",
    "options_of",
    "options_of_model",
    "read_deployment",
    "read_document",
    "read_profiles",
    "read_shape",
    "section_text",
    "shape_text",
    "tuned_settings",
    "write_document",
    "write_profile",
    "wrong_fields",
]
