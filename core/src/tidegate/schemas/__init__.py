"""Schemas of the files that distributions exchange: versioned documents that people can read and diff.

document       reads JSON or YAML, writes JSON; recognizes a file of another kind than a command takes; types of
               `tidegate.api` as fields of a document; documents as fields of options, inline or by path
layout         what is loaded where: written by planners, read by the generator, the simulator and the proxy
demand         the request rates of models, the GPUs and the rows per request: planners derive their problems from
               them; and which server schedules which model
deployment     what the generator wrote: model repositories and the processes that serve them; interference among
               their emulated GPUs
profile_file   measured latency of models by shape, shapes as text, and the hardware that was measured
interference   latency of models on shares of one GPU, and how models there slow each other down
dynamic_batching   Triton's `dynamic_batching` of a model, as in config.pbtxt and as options of the policy `triton`
validation_errors  validation errors as text: the field, the problem, the value, the known name that was meant
block_profile  measured latency of the blocks of a model, for planners of partitions
"""

from tidegate.api.device import (
    DEFAULT_DEVICE_CLASS,
    Device,
    Mig,
    Mps,
    Slice,
    WholeDevice,
    compute_percent,
    mig_instance,
)
from tidegate.api.interference import Interference, Tenant
from tidegate.api.mig import MIG_GEOMETRIES, MigGeometry, MigProfile, mig_geometries
from tidegate.schemas.block_profile import BlockLatencies, BlockProfile
from tidegate.schemas.demand import Assignment, Demand, DemandedModel, RequestSizes
from tidegate.schemas.deployment import (
    DEPLOYMENT_FILE,
    INTERFERENCE_FILE,
    LAYOUT_FILE,
    NEIGHBORS_PARAMETER,
    PROXY_FILE,
    RUN_FOLDER,
    STATE_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    device_variable,
    neighbors_parameter,
    read_deployment,
)
from tidegate.schemas.document import (
    DocumentError,
    PathField,
    other_kind,
    parse_yaml,
    read_document,
    write_document,
)
from tidegate.schemas.dynamic_batching import (
    dynamic_batching_of,
    options_of,
    options_of_model,
    section_text,
    tuned_settings,
)
from tidegate.schemas.interference import (
    HeldOut,
    InterferenceModel,
    NonDecreasingLine,
    Sensitivity,
    ShareTable,
    SharingModel,
    StandaloneTenant,
)
from tidegate.schemas.layout import Layout, LayoutModel, LayoutNetwork, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate.schemas.profile_file import (
    Hardware,
    ModelProfile,
    ProfileFile,
    ProfileFileError,
    ProfilePoint,
    format_shape,
    hardware_here,
    read_profiles,
    read_shape,
    write_profile,
)
from tidegate.schemas.validation_errors import (
    WHOLE_DOCUMENT,
    FieldError,
    did_you_mean,
    field_errors,
    format_field_errors,
    format_yaml_error,
    plain_message,
)

__all__ = [
    "DEFAULT_DEVICE_CLASS",
    "DEPLOYMENT_FILE",
    "INTERFERENCE_FILE",
    "LAYOUT_FILE",
    "MIG_GEOMETRIES",
    "NEIGHBORS_PARAMETER",
    "PROXY_FILE",
    "RUN_FOLDER",
    "STATE_FILE",
    "WHOLE_DOCUMENT",
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
    "FieldError",
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
    "Mig",
    "MigGeometry",
    "MigProfile",
    "ModelProfile",
    "Mps",
    "NonDecreasingLine",
    "PathField",
    "ProfileFile",
    "ProfileFileError",
    "ProfilePoint",
    "RequestSizes",
    "Sensitivity",
    "ShareTable",
    "SharingModel",
    "Slice",
    "StandaloneTenant",
    "Tenant",
    "WholeDevice",
    "compute_percent",
    "device_variable",
    "did_you_mean",
    "dynamic_batching_of",
    "field_errors",
    "format_field_errors",
    "format_shape",
    "format_yaml_error",
    "hardware_here",
    "mig_geometries",
    "mig_instance",
    "neighbors_parameter",
    "options_of",
    "options_of_model",
    "other_kind",
    "parse_yaml",
    "plain_message",
    "read_deployment",
    "read_document",
    "read_profiles",
    "read_shape",
    "section_text",
    "tuned_settings",
    "write_document",
    "write_profile",
]
