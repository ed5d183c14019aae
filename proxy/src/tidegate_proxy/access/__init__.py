"""Access control: TLS, credentials and restricted APIs. The servers ask `gate`.

`passthrough_apis`: APIs that a Triton restricts itself.
"""
