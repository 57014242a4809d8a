"""Taking the trajectory along to another thread.

Context variables stay behind where work is handed to a pool (``loop.run_in_executor``,
``ThreadPoolExecutor``) or a ``threading.Thread``: spans started there would belong to no
trajectory. ``asyncio.to_thread`` and tasks take them along by themselves.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from opentelemetry import context as otel_context

from otel_rollout import recording as recordings

_P = ParamSpec("_P")
_R = TypeVar("_R")


def in_context(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``function`` as it is to be called on another thread: with the context of here, now.

    For functions and coroutine functions; call it inside ``trajectory(...)``::

        await loop.run_in_executor(pool, in_context(score), answer)
        threading.Thread(target=in_context(score), args=(answer,)).start()

    Only OpenTelemetry's context is taken along. It does not cross to another process. What the
    function returns or raises is unchanged.
    """
    context = otel_context.get_current()

    def inside(*args: Any, **kwargs: Any) -> Any:
        token = recordings.attach(context)
        try:
            return function(*args, **kwargs)
        finally:
            recordings.detach(token)

    async def inside_async(*args: Any, **kwargs: Any) -> Any:
        token = recordings.attach(context)
        try:
            return await function(*args, **kwargs)  # type: ignore[misc]
        finally:
            recordings.detach(token)

    wrapper: Any = inside_async if inspect.iscoroutinefunction(function) else inside
    if hasattr(function, "__name__"):
        functools.update_wrapper(wrapper, function)
    return wrapper  # type: ignore[no-any-return]
