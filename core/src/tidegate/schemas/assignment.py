"""Assignment of models to sub-clusters: the part of a plan that a server reads."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tidegate.api import VersionedDocument


class Assignment(VersionedDocument):
    """The part of a plan that assigns models; other fields are ignored and may be missing."""

    model_config = ConfigDict(extra="ignore")
    kind: Literal["subclusters"] = "subclusters"
    assignment: dict[str, Annotated[int, Field(ge=0)]]
    """{model: number of its sub-cluster}."""
