"""Helpers that every other package may use.

internal_errors  reports errors of Tidegate itself
labels           bounds the length and the number of label values
outcome          the outcome of a request: a response, or why there is none
refusal          the reasons for which Tidegate rejects requests
reserved_names   names that clients may not use
tasks            cancels tasks of asyncio; work in threads of its own
watchdog         reports what blocks the event loop
"""
