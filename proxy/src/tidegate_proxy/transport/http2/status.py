"""What the errors of HTTP and HTTP/2 mean in gRPC (grpc/doc/PROTOCOL-HTTP2.md, http-grpc-status-mapping.md)."""

from typing import Final

from grpc import StatusCode
from ngh2.enums import ErrorCode

CODES: Final = {code.value[0]: code for code in StatusCode}
"""gRPC's status codes by their number."""
_OF_HTTP: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
_OF_RESET: Final = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}


def code_of_http(status: int) -> StatusCode:
    """The code of an answer that is not gRPC's own, by its HTTP status."""
    return _OF_HTTP.get(status, StatusCode.UNKNOWN)


def code_of_reset(error_code: int) -> StatusCode:
    """The code of a stream that was reset, by HTTP/2's error code."""
    return _OF_RESET.get(ErrorCode(error_code), StatusCode.INTERNAL) if error_code <= 0xD else StatusCode.INTERNAL


def name_of(error_code: int) -> str:
    """An HTTP/2 error code in words."""
    return ErrorCode(error_code).name if error_code <= 0xD else f"error {error_code:#x}"
