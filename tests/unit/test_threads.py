"""A trajectory goes along to other threads: by ``in_context``, and to thread pools by itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context

from otel_rollout import in_context, rollout_op, semconv, trajectory
from otel_rollout.instrumentors.threads import ThreadPoolInstrumentor
from tests.unit.pipeline import Pipeline, attributes

MINE: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="unset")


@rollout_op(kind="tool", name="work")
def work(value: int = 0) -> int:
    return value


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def instrumented() -> Iterator[None]:
    instrumentor = ThreadPoolInstrumentor()
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


def steps(pipeline: Pipeline) -> list[Any]:
    """The step that each tool's span knows, and whether it is below the root."""
    spans = pipeline.spans()
    roots = {span.context.span_id for span in spans if span.name == "rollout"}
    return [
        (
            attributes(span).get(semconv.STEP),
            span.parent is not None and span.parent.span_id in roots,
        )
        for span in spans
        if span.name == "execute_tool work"
    ]


class TestInContext:
    """What is called elsewhere belongs to the trajectory in which ``in_context`` was called."""

    def test_a_thread(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            thread = threading.Thread(target=in_context(work), args=(1,))
        with trajectory(step=2):
            thread.start()
            thread.join()
        assert steps(pipeline) == [(1, True)]

    def test_a_pool(self, pipeline: Pipeline, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        with trajectory(step=1):
            assert list(pool.map(in_context(work), range(5))) == list(range(5))
            assert pool.submit(in_context(functools.partial(work, 7))).result() == 7
        assert steps(pipeline) == [(1, True)] * 6

    async def test_an_executor_of_the_loop(self, pipeline: Pipeline) -> None:
        async with trajectory(step=1):
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, in_context(work), 3) == 3
        assert steps(pipeline) == [(1, True)]

    async def test_a_coroutine_function_on_another_loop(self, pipeline: Pipeline) -> None:
        @rollout_op(kind="tool", name="work")
        async def later() -> int:
            await asyncio.sleep(0)
            return 4

        async with trajectory(step=1):
            taken = in_context(later)
        assert asyncio.iscoroutinefunction(taken)
        found = await asyncio.to_thread(lambda: asyncio.run(taken()))
        assert found == 4
        assert steps(pipeline) == [(1, True)]

    def test_nothing_of_it_is_left_on_the_thread(self) -> None:
        with trajectory(step=1):
            failing = in_context(lambda: 1 / 0)
        with concurrent.futures.ThreadPoolExecutor(1) as single:
            with pytest.raises(ZeroDivisionError):
                single.submit(failing).result()
            assert single.submit(otel_context.get_current).result() == {}

    def test_other_context_variables_stay_those_of_the_thread(
        self, pool: concurrent.futures.ThreadPoolExecutor
    ) -> None:
        MINE.set("caller")
        with trajectory(step=1):
            assert pool.submit(in_context(MINE.get)).result() == "unset"

    def test_it_looks_like_the_function(self) -> None:
        def function(x: int) -> int:
            """Double it."""
            return 2 * x

        assert in_context(function).__doc__ == "Double it."
        assert in_context(functools.partial(function, 2))() == 4


@pytest.mark.usefixtures("instrumented")
class TestThreadPools:
    """Under ``opentelemetry-instrument`` nothing needs to be said for a thread pool."""

    def test_submit_and_map(
        self, pipeline: Pipeline, pool: concurrent.futures.ThreadPoolExecutor
    ) -> None:
        with trajectory(step=1):
            first = pool.submit(work, value=1)
            assert list(pool.map(work, range(3))) == [0, 1, 2]
        assert first.result() == 1
        assert steps(pipeline) == [(1, True)] * 4

    async def test_run_in_executor_with_trajectories_at_once(self, pipeline: Pipeline) -> None:
        async def one(step: int) -> None:
            async with trajectory(step=step):
                await asyncio.get_running_loop().run_in_executor(None, work)

        await asyncio.gather(*(one(step) for step in range(20)))
        assert sorted(steps(pipeline)) == [(step, True) for step in range(20)]

    def test_outside_a_trajectory_nothing_is_put_around_the_function(
        self, pool: concurrent.futures.ThreadPoolExecutor
    ) -> None:
        def caller() -> str:
            return sys._getframe(1).f_globals["__name__"]

        assert pool.submit(caller).result() == "concurrent.futures.thread"
        with trajectory(step=1):
            assert pool.submit(caller).result() == "otel_rollout.threads"

    def test_what_cannot_be_called_is_the_pools_own_error(
        self, pool: concurrent.futures.ThreadPoolExecutor
    ) -> None:
        with trajectory(step=1), pytest.raises(TypeError):
            pool.submit(7).result()  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="argument"):
            pool.submit()  # type: ignore[call-arg]

    def test_it_is_undone(self, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        ThreadPoolInstrumentor().uninstrument()
        with trajectory(step=1):
            assert pool.submit(otel_context.get_current).result() == {}
        ThreadPoolInstrumentor().instrument()
