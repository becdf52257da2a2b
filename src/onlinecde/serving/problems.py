"""What a client is told when something cannot be done: a status, a stable code, the field, the remedy."""

from __future__ import annotations

from typing import Any


class ServingError(ValueError):
    """A setting a server cannot run with; the message says what to do."""


class Problem(Exception):  # noqa: N818
    """An answer other than the one asked for; `code` is stable, `message` is for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.field, self.retry_after = field, retry_after

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        content: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field is not None:
            content["field"] = self.field
        return {"error": content}

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, how to say who one is, what a body may be packed in."""
        result = {}
        if self.retry_after is not None:
            result["retry-after"] = str(max(1, round(self.retry_after + 0.5)))
        if self.status == 401:
            result["www-authenticate"] = "Bearer"
        if self.code == "content_encoding":
            result["accept-encoding"] = "gzip"
        return result
