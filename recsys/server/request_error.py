"""Errors that a request gets as its answer."""

from __future__ import annotations

from recsys.base.errors import UserError


class RequestError(UserError):
    """A request that cannot be answered. status: the HTTP status, which gRPC translates to its own codes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error: 400 for what the caller can correct, 500 for anything unexpected."""
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, UserError) else 500


def one_line(error: BaseException) -> str:
    """Return the message for the caller. The cause of an unexpected error is only in the server's log."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    return "internal error; the server's log has the details under this request's id"
