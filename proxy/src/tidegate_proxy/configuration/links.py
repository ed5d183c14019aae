"""Links between frontends and shards in the configuration: their security, and the time allowed for restarts."""

from pydantic import Field

from tidegate_proxy.configuration.section import ConfigSection, InputFile, Seconds


class LinkTls(ConfigSection):
    """Mutual TLS: both ends present a certificate of the same CA, which must serve no other purpose."""

    cert: InputFile = Field(
        description="PEM file with the own certificate, valid for the host in `shards.N.address` of a shard"
    )
    key: InputFile = Field(description="PEM file with its private key, not encrypted")
    ca: InputFile = Field(description="PEM file with the CA of all frontends and shards, used for nothing else")


class LinksConfig(ConfigSection):
    """Links between frontends and shards. Between machines they are encrypted only with `tls`."""

    secret_file: InputFile | None = Field(
        default=None, description="File with a secret that frontends and shards prove to each other, at least 16 bytes"
    )
    tls: LinkTls | None = Field(default=None, description="Mutual TLS; default: none, for trusted networks")
    reconnect_timeout_s: Seconds = Field(
        default=10.0, description="Time for which requests wait for a shard that restarts"
    )
