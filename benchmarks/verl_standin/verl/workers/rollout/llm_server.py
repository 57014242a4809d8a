"""Stands in for verl's ``LLMServerClient``: the same calls around a generation, no Ray."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput


class LLMServerClient:
    def __init__(self, config: Any, load_balancer_handle: Any = None) -> None:
        self.config = config
        self._load_balancer = load_balancer_handle
        self._fields: list[str] | None = None

    async def _acquire_server(self, request_id: str, **given: Any) -> tuple[str, Any]:
        if self._fields is None:
            (self._fields,) = await asyncio.gather(
                self._load_balancer.require_acquire_fields.remote()
            )
        server: tuple[str, Any] = await self._load_balancer.acquire_server.remote(
            request_id=request_id
        )
        return server

    @rollout_trace_op
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        server_id, server = await self._acquire_server(
            request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
        )
        try:
            output: TokenOutput = await server.generate.remote(
                request_id=uuid4().hex,
                prompt_ids=prompt_ids,
                sampling_params=sampling_params,
                image_data=image_data,
                video_data=video_data,
                **kwargs,
            )
            return output
        finally:
            self._load_balancer.release_server.remote(server_id=server_id, request_id=request_id)
