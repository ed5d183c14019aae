"""Access control: TLS, credentials and restricted APIs. The servers ask `gate`.

`tenants`: tenants of clients and their rate limits.

`passthrough_apis`: APIs that a Triton restricts itself.
"""
