"""A gRPC channel to a CRI that is an object of the test: what is sent and answered goes through the real messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc


class Refusal(grpc.RpcError):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Channel:
    """Answers each request by the method of its name: `ListPodSandbox` by `list_pod_sandbox`, if it is not refused."""

    def __init__(self) -> None:
        self.refuses: Callable[[str, Any], Refusal | None] = lambda _method, _request: None

    def unary_unary(
        self, path: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., Any]:
        service, method = path.strip("/").split("/")
        assert service == "runtime.v1.RuntimeService"

        def call(request: Any, timeout: float) -> Any:
            assert timeout > 0
            received = type(request).FromString(request_serializer(request))
            if (refusal := self.refuses(method, received)) is not None:
                raise refusal
            answer = getattr(self, re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower())
            return response_deserializer(answer(received).SerializeToString())

        return call
