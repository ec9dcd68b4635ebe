"""Errors in the form that OpenAI's clients read: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any

from ramet.errors import RametError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    500: "server_error",
    502: "engine_error",
    503: "server_error",
}


class RequestError(RametError):
    """A request that is answered with an error. `param` is the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        retry: bool | None = None,  # whether clients should try again by themselves; None: as they decide
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.retry = retry

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": str(self), "type": TYPES[self.status], "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        if self.retry is not None:
            headers["x-should-retry"] = str(self.retry).lower()
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def wrong(param: str, message: str, *, code: str | None = None) -> RequestError:
    """A field whose value is not accepted."""
    return RequestError(400, message, param=param, code=code)
