"""Which model is whose: what a server reads of a plan of sub-clusters."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tidegate.api import VersionedDocument


class Assignment(VersionedDocument):
    """What of a plan says where each model goes; the rest of it is passed over, and may be left out."""

    model_config = ConfigDict(extra="ignore")
    kind: Literal["subclusters"] = "subclusters"
    assignment: dict[str, Annotated[int, Field(ge=0)]]
    """{model: the number of its sub-cluster}."""
