"""Who gets in, and how: TLS, credentials, APIs that are not for everybody. `gate` is what the servers ask."""
