"""``rollout_op`` on every kind of callable: a span each call, the function as it was."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from otel_rollout import recording, rollout_op, semconv, trajectory
from tests.unit.pipeline import Pipeline, attributes, loaded


@pytest.fixture(autouse=True)
def inside(pipeline: Pipeline) -> Iterator[None]:
    """Every op here runs inside a trajectory."""
    with trajectory(step=1):
        yield


def name(function: str) -> str:
    """The span's name of a function that the calling test defines."""
    frame = inspect.stack()[1].frame
    test_class = type(frame.f_locals["self"]).__qualname__
    return f"{test_class}.{frame.f_code.co_name}.<locals>.{function}"


class TestPlainFunctions:
    """One span a call, with inputs and output as JSON."""

    def test_arguments_and_result(self, pipeline: Pipeline) -> None:
        @rollout_op
        def add(a: int, /, b: int, *rest: int, c: int = 3, **more: Any) -> int:
            return a + b + c

        assert add(1, 2, 9, d=[1]) == 6
        span = pipeline.named(name("add"))
        assert loaded(span, semconv.INPUT) == {"a": 1, "b": 2, "rest": [9], "more": {"d": [1]}}
        assert loaded(span, semconv.OUTPUT) == 6
        assert attributes(span)["rollout.step"] == 1
        assert add.__name__ == "add"
        assert list(inspect.signature(add).parameters) == ["a", "b", "rest", "c", "more"]

    def test_an_exception_is_the_same_object(self, pipeline: Pipeline) -> None:
        error = KeyError("x")
        cause = ValueError("why")

        @rollout_op(name="bad")
        def bad() -> None:
            raise error from cause

        with pytest.raises(KeyError) as raised:
            bad()
        assert raised.value is error
        assert error.__cause__ is cause
        span = pipeline.named("bad")
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)[semconv.ERROR_TYPE] == "KeyError"
        assert semconv.OUTPUT not in attributes(span)

    def test_wrong_arguments_are_the_functions_own_error(self, pipeline: Pipeline) -> None:
        class Tool:
            @rollout_op(name="one")
            def one(self, a: int) -> None: ...

        with pytest.raises(TypeError, match="positional argument"):
            Tool().one(1, 2)  # type: ignore[call-arg]
        span = pipeline.named("one")
        assert loaded(span, semconv.INPUT) == {"args": [1, 2]}

    @pytest.mark.parametrize(
        ("kind", "span_name", "key"),
        [
            ("agent", "invoke_agent N", semconv.AGENT_NAME),
            ("llm", "chat N", semconv.REQUEST_MODEL),
            ("tool", "execute_tool N", semconv.TOOL_NAME),
            (None, "N", None),
            ("nonsense", "N", None),
        ],
    )
    def test_kinds(
        self, pipeline: Pipeline, kind: str | None, span_name: str, key: str | None
    ) -> None:
        @rollout_op(name="N", kind=kind)
        def function(x: int) -> int:
            return x

        function(4)
        span = pipeline.named(span_name)
        given, result = (
            (semconv.TOOL_ARGUMENTS, semconv.TOOL_RESULT)
            if kind == "tool"
            else (semconv.INPUT, semconv.OUTPUT)
        )
        assert loaded(span, given) == {"x": 4}
        assert loaded(span, result) == 4
        assert key is None or attributes(span)[key] == "N"

    def test_capture_false_keeps_nothing(self, pipeline: Pipeline) -> None:
        @rollout_op(name="secret", capture=False)
        def secret(password: str) -> str:
            return password

        assert secret("hunter2") == "hunter2"
        assert "hunter2" not in str(attributes(pipeline.named("secret")))

    @pytest.mark.parametrize(
        ("capture", "inputs", "output"),
        [
            (True, {"a": 1, "b": 2}, 3),
            (False, None, None),
            ("inputs", {"a": 1, "b": 2}, None),
            ("output", None, 3),
            (("b",), {"b": 2}, 3),
            (["a", "b"], {"a": 1, "b": 2}, 3),
            ((), {}, 3),
        ],
    )
    def test_capture_chooses(
        self, pipeline: Pipeline, capture: Any, inputs: Any, output: Any
    ) -> None:
        @rollout_op(name="add", capture=capture)
        def add(a: int, b: int) -> int:
            return a + b

        assert add(1, b=2) == 3
        span = attributes(pipeline.named("add"))
        assert (semconv.INPUT in span) == (inputs is not None)
        assert (semconv.OUTPUT in span) == (output is not None)
        assert inputs is None or loaded(pipeline.named("add"), semconv.INPUT) == inputs
        assert output is None or span[semconv.OUTPUT] == "3"

    @pytest.mark.parametrize("capture", ["a", None, 7, (1,), ([],)])
    def test_a_capture_that_is_not_known_keeps_nothing(
        self, pipeline: Pipeline, capture: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        @rollout_op(name="f", capture=capture)
        def f(a: str) -> str:
            return a

        assert f("hunter2") == "hunter2"
        assert "hunter2" not in str(attributes(pipeline.named("f")))
        (record,) = caplog.records
        assert f"capture={capture!r}" in record.getMessage()

    def test_an_argument_that_is_not_there_is_said(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        @rollout_op(name="f", capture=("a", "qurey"))
        def f(a: int, query: int) -> int:
            return a

        f(1, 2)
        assert loaded(pipeline.named("f"), semconv.INPUT) == {"a": 1}
        (record,) = caplog.records
        assert "f: it has no arguments qurey" in record.getMessage()

    def test_inputs_are_as_they_were_at_the_call(self, pipeline: Pipeline) -> None:
        @rollout_op(name="grow")
        def grow(items: list[int]) -> list[int]:
            items.append(2)
            return items

        result = grow([1])
        result.append(3)
        span = pipeline.named("grow")
        assert loaded(span, semconv.INPUT) == {"items": [1]}
        assert loaded(span, semconv.OUTPUT) == [1, 2]

    def test_what_cannot_be_recorded_leaves_the_result_alone(self, pipeline: Pipeline) -> None:
        class Hostile:
            def __repr__(self) -> str:
                raise RuntimeError("no")

            def __getattr__(self, attribute: str) -> Any:
                raise OSError(attribute)

        @rollout_op(name="hostile")
        def hostile(value: Any) -> Any:
            return value

        value = Hostile()
        assert hostile(value) is value
        assert pipeline.named("hostile").status.status_code is StatusCode.UNSET


class TestOtherCallables:
    """Methods of every kind, callable objects and partials."""

    def test_methods_without_self(self, pipeline: Pipeline) -> None:
        class Tool:
            @rollout_op
            def method(self, x: int) -> tuple[type, int]:
                return type(self), x

            @rollout_op
            @classmethod
            def outer(cls, x: int) -> tuple[type, int]:
                return cls, x

            @classmethod
            @rollout_op
            def inner(cls, x: int) -> tuple[type, int]:
                return cls, x

            @rollout_op
            @staticmethod
            def static(x: int) -> int:
                return x

            @staticmethod
            @rollout_op
            async def static_async(x: int) -> int:
                return x

        class Sub(Tool): ...

        assert Sub().method(1) == (Sub, 1)
        assert Sub.outer(2) == (Sub, 2)
        assert Sub.inner(3) == (Sub, 3)
        assert Sub.static(4) == Sub().static(4) == 4
        assert asyncio.run(Sub.static_async(5)) == 5
        for method, x in (("method", 1), ("outer", 2), ("inner", 3)):
            span = pipeline.named(name("Tool") + "." + method)
            assert loaded(span, semconv.INPUT) == {"x": x}

    async def test_callable_objects(self, pipeline: Pipeline) -> None:
        class Plain:
            def __call__(self, x: int) -> int:
                return x

        class Async:
            async def __call__(self, x: int) -> int:
                return x

        class Gen:
            def __call__(self, x: int) -> Iterator[int]:
                yield x

        assert rollout_op(name="plain")(Plain())(1) == 1
        assert await rollout_op(name="async")(Async())(2) == 2
        assert list(rollout_op(name="gen")(Gen())(3)) == [3]
        assert rollout_op(Plain())(4) == 4
        spans = [s for s in pipeline.spans() if semconv.INPUT in attributes(s)]
        assert [loaded(s, semconv.INPUT) for s in spans] == [{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}]
        assert [s.name for s in spans] == ["plain", "async", "gen", "Plain"]

    def test_partials_have_their_functions_name(self, pipeline: Pipeline) -> None:
        def function(x: int, y: int) -> int:
            return x * y

        assert rollout_op(functools.partial(function, 3))(y=4) == 12
        assert [s.name for s in pipeline.spans()] == [name("function")]
        assert loaded(pipeline.spans()[0], semconv.INPUT) == {"y": 4}

    async def test_partials_of_coroutines(self, pipeline: Pipeline) -> None:
        async def function(x: int, y: int) -> int:
            return x * y

        assert await rollout_op(name="f")(functools.partial(function, 3))(4) == 12
        assert loaded(pipeline.named("f"), semconv.OUTPUT) == 12

    def test_a_class_with_an_async_call_is_made_at_once(self, pipeline: Pipeline) -> None:
        class Worker:
            async def __call__(self) -> None: ...

        assert isinstance(rollout_op(name="make")(Worker)(), Worker)

    def test_properties_and_partial_methods(self, pipeline: Pipeline) -> None:
        class Box:
            def __init__(self) -> None:
                self.value = 1

            @rollout_op
            @property
            def plain(self) -> int:
                "What is in it."
                return self.value

            @plain.setter
            def plain(self, value: int) -> None:
                self.value = value

            @rollout_op
            @functools.cached_property
            def once(self) -> int:
                return self.value

            def add(self, a: int, b: int) -> int:
                return self.value + a + b

            add_two = rollout_op(name="add_two")(functools.partialmethod(add, 2))

        box = Box()
        assert Box.plain.__doc__ == "What is in it."
        assert (box.plain, box.once, box.once, box.add_two(3)) == (1, 1, 1, 6)
        box.plain = 5
        assert (box.plain, box.once) == (5, 1)
        names = [s.name.rpartition(".")[2] for s in pipeline.spans()]
        assert names == ["plain", "once", "add_two", "plain"]
        assert loaded(pipeline.named("add_two"), semconv.INPUT) == {"a": 2, "b": 3}

    def test_a_cached_function_keeps_its_cache(self, pipeline: Pipeline) -> None:
        @rollout_op(name="cached")
        @functools.lru_cache
        def cached(x: int) -> int:
            return x

        assert [cached(1), cached(1)] == [1, 1]
        assert cached.cache_info().hits == 1
        cached.cache_clear()
        assert cached.cache_info().hits == 0
        assert len(pipeline.spans()) == 2

    def test_what_cannot_be_called_stays_what_it_is(self, caplog: pytest.LogCaptureFixture) -> None:
        assert rollout_op(7) == 7  # type: ignore[type-var]
        (record,) = caplog.records
        assert "cannot be called" in record.getMessage()

    def test_built_ins(self, pipeline: Pipeline) -> None:
        assert rollout_op(name="len")(len)([1, 2]) == 2
        assert loaded(pipeline.named("len"), semconv.OUTPUT) == 2

    def test_decorated_methods_pickle_by_name(self) -> None:
        import pickle

        assert pickle.loads(pickle.dumps(module_level)) is module_level


@rollout_op
def module_level() -> None: ...


class TestCoroutines:
    """A coroutine's span lasts from its first step to its end."""

    async def test_result_and_children(self, pipeline: Pipeline) -> None:
        @rollout_op(name="outer")
        async def outer() -> int:
            await asyncio.sleep(0)
            return await inner()

        @rollout_op(name="inner")
        async def inner() -> int:
            await asyncio.sleep(0)
            return 5

        assert inspect.iscoroutinefunction(outer)
        assert await outer() == 5
        spans = {s.name: s for s in pipeline.spans()}
        assert spans["inner"].parent is not None
        assert spans["inner"].parent.span_id == spans["outer"].context.span_id

    async def test_cancelled(self, pipeline: Pipeline) -> None:
        seen: list[tuple[Any, ...]] = []

        @rollout_op(name="long")
        async def long() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                seen.append(error.args)
                raise

        task = asyncio.create_task(long())
        await asyncio.sleep(0.01)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):  # Python 3.10's has no message here
            await task
        assert seen == [("enough",)]
        span = pipeline.named("long")
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)[semconv.ERROR_TYPE] == "CancelledError"


class TestGenerators:
    """A generator behaves as without the decorator; its span lasts from first step to end."""

    def test_send_throw_and_return(self, pipeline: Pipeline) -> None:
        @rollout_op(name="talk")
        def talk(start: int) -> Generator[Any, Any, str]:
            got = yield start
            try:
                yield ("got", got)
            except ValueError as error:
                yield ("caught", str(error))
            return "done"

        generator = talk(1)
        assert inspect.isgeneratorfunction(talk)
        assert next(generator) == 1
        assert generator.send("x") == ("got", "x")
        assert generator.throw(ValueError("y")) == ("caught", "y")
        with pytest.raises(StopIteration) as stop:
            next(generator)
        assert stop.value.value == "done"
        span = pipeline.named("talk")
        assert loaded(span, semconv.OUTPUT) == {"items": 3, "returned": "done"}
        assert loaded(span, semconv.INPUT) == {"start": 1}

    def test_an_error_inside(self, pipeline: Pipeline) -> None:
        error = OSError("x")

        @rollout_op(name="bad")
        def bad() -> Iterator[int]:
            yield 1
            raise error

        with pytest.raises(OSError, match="x") as raised:
            list(bad())
        assert raised.value is error
        assert pipeline.named("bad").status.status_code is StatusCode.ERROR

    def test_wrong_arguments(self, pipeline: Pipeline) -> None:
        @rollout_op(name="none")
        def none() -> Iterator[int]:
            yield 1

        with pytest.raises(TypeError, match="positional argument"):
            list(none(1))  # type: ignore[call-arg]
        assert pipeline.named("none").status.status_code is StatusCode.ERROR

    def test_a_stop_iteration_thrown_in_is_a_runtime_error(self, pipeline: Pipeline) -> None:
        @rollout_op(name="g")
        def g() -> Iterator[int]:
            yield 1

        generator = g()
        next(generator)
        with pytest.raises(RuntimeError, match="StopIteration"):
            generator.throw(StopIteration(1))  # type: ignore[attr-defined]

    def test_left_early(self, pipeline: Pipeline) -> None:
        closed: list[trace.Span] = []

        @rollout_op(name="many")
        def many() -> Iterator[int]:
            try:
                yield from range(10)
            finally:
                closed.append(trace.get_current_span())

        for item in many():
            if item == 2:
                break
        gc.collect()
        span = pipeline.named("many")
        assert span.status.status_code is StatusCode.UNSET
        assert loaded(span, semconv.OUTPUT) == {"items": 3, "closed": True}
        # the clean-up is the generator's own code, inside its span
        assert [s.get_span_context() for s in closed] == [span.context]

    def test_an_error_while_it_is_closed(self, pipeline: Pipeline) -> None:
        @rollout_op(name="stubborn")
        def stubborn() -> Iterator[int]:
            try:
                yield 1
            finally:
                raise OSError("cannot close")

        generator = stubborn()
        next(generator)
        with pytest.raises(OSError, match="cannot close"):
            generator.close()  # type: ignore[attr-defined]
        assert pipeline.named("stubborn").status.status_code is StatusCode.ERROR

    def test_it_is_current_only_while_its_own_code_runs(self, pipeline: Pipeline) -> None:
        outside = trace.get_current_span()

        @rollout_op(name="g")
        def g() -> Iterator[trace.Span]:
            yield trace.get_current_span()
            yield trace.get_current_span()

        for span in g():
            assert span is not outside
            assert trace.get_current_span() is outside

    def test_a_span_opened_around_a_yield_stays_the_parent(self, pipeline: Pipeline) -> None:
        outside = trace.get_current_span()

        @rollout_op(name="g")
        def g() -> Iterator[int]:
            with pipeline.foreign.start_as_current_span("block"):
                yield 1
                pipeline.foreign.start_span("after the yield").end()

        for _ in g():
            assert trace.get_current_span() is outside
        assert trace.get_current_span() is outside
        after, block = pipeline.named("after the yield"), pipeline.named("block")
        assert after.parent is not None
        assert after.parent.span_id == block.context.span_id
        assert block.parent is not None
        assert block.parent.span_id == pipeline.named("g").context.span_id

    def test_never_started_is_never_recorded(self, pipeline: Pipeline) -> None:
        @rollout_op(name="g")
        def g() -> Iterator[int]:
            yield 1

        g()
        assert pipeline.spans() == []


class TestAsyncGenerators:
    """The same for async generators."""

    async def test_asend_and_athrow(self, pipeline: Pipeline) -> None:
        @rollout_op(name="talk")
        async def talk() -> AsyncGenerator[Any, Any]:
            got = yield 1
            try:
                await asyncio.sleep(0)
                yield ("got", got)
            except ValueError as error:
                yield ("caught", str(error))

        generator = talk()
        assert inspect.isasyncgenfunction(talk)
        assert await anext(generator) == 1
        assert await generator.asend("x") == ("got", "x")
        assert await generator.athrow(ValueError("y")) == ("caught", "y")
        with pytest.raises(StopAsyncIteration):
            await anext(generator)
        assert loaded(pipeline.named("talk"), semconv.OUTPUT) == {"items": 3}

    async def test_left_early(self, pipeline: Pipeline) -> None:
        closed: list[trace.Span] = []

        @rollout_op(name="many")
        async def many() -> AsyncGenerator[int, None]:
            try:
                for item in range(10):
                    yield item
            finally:
                await asyncio.sleep(0)
                closed.append(trace.get_current_span())

        async with contextlib.aclosing(many()) as generator:
            async for item in generator:
                if item == 2:
                    break
        span = pipeline.named("many")
        assert loaded(span, semconv.OUTPUT) == {"items": 3, "closed": True}
        assert [s.get_span_context() for s in closed] == [span.context]

    async def test_dropped(self, pipeline: Pipeline) -> None:
        closed = asyncio.Event()

        @rollout_op(name="many")
        async def many() -> AsyncGenerator[int, None]:
            try:
                yield 1
                yield 2
            finally:
                closed.set()

        async for _ in many():
            break
        gc.collect()
        await asyncio.wait_for(closed.wait(), 5)
        await asyncio.sleep(0)
        assert loaded(pipeline.named("many"), semconv.OUTPUT) == {"items": 1, "closed": True}

    async def test_cancelled_inside(self, pipeline: Pipeline) -> None:
        cleaned: list[bool] = []

        @rollout_op(name="slow")
        async def slow() -> AsyncGenerator[int, None]:
            try:
                yield 1
                await asyncio.sleep(60)
            finally:
                cleaned.append(True)

        async def use() -> None:
            async for _ in slow():
                pass

        task = asyncio.create_task(use())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [True]
        span = pipeline.named("slow")
        assert attributes(span)[semconv.ERROR_TYPE] == "CancelledError"

    async def test_it_is_current_only_while_its_own_code_runs(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        outside = trace.get_current_span()

        @rollout_op(name="g")
        async def g() -> AsyncGenerator[int, None]:
            with pipeline.foreign.start_as_current_span("block"):
                yield 1
                await asyncio.sleep(0)
                pipeline.foreign.start_span("after the yield").end()

        async for _ in g():
            assert trace.get_current_span() is outside
        after = pipeline.named("after the yield")
        assert after.parent is not None
        assert after.parent.span_id == pipeline.named("block").context.span_id
        assert caplog.records == []

    async def test_steps_from_several_tasks(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        @rollout_op(name="g")
        async def g() -> AsyncGenerator[int, None]:
            for item in range(3):
                yield item
                await asyncio.sleep(0)

        generator = g()
        items = [await asyncio.create_task(anext(generator)) for _ in range(3)]  # type: ignore[arg-type]
        await asyncio.create_task(generator.aclose())
        assert items == [0, 1, 2]
        assert caplog.records == []
        assert len(pipeline.spans()) == 1


class TestWhatAPlainFunctionHandsOn:
    """Its span lasts until the coroutine, generator or future that it returned has ended."""

    async def test_a_coroutine(self, pipeline: Pipeline) -> None:
        async def work(x: int) -> int:
            await asyncio.sleep(0)
            pipeline.foreign.start_span("within").end()
            return x + 1

        @rollout_op(name="plain")
        def plain(x: int) -> Any:
            return work(x)

        given = plain(1)
        assert inspect.iscoroutine(given)
        assert given.__qualname__.endswith("work")
        assert pipeline.spans() == []
        assert await given == 2
        span, within = pipeline.named("plain"), pipeline.named("within")
        assert loaded(span, semconv.OUTPUT) == 2
        assert loaded(span, semconv.INPUT) == {"x": 1}
        assert within.parent is not None
        assert within.parent.span_id == span.context.span_id

    async def test_a_lambda_around_a_coroutine_that_fails(self, pipeline: Pipeline) -> None:
        error = KeyError("x")

        async def work() -> None:
            raise error

        with pytest.raises(KeyError) as raised:
            await rollout_op(name="f")(lambda: work())()
        assert raised.value is error
        assert attributes(pipeline.named("f"))[semconv.ERROR_TYPE] == "KeyError"

    @pytest.mark.filterwarnings("ignore:coroutine")
    def test_one_that_is_never_awaited_leaves_no_span_open(self, pipeline: Pipeline) -> None:
        async def work() -> None: ...

        rollout_op(name="f")(lambda: work())()
        gc.collect()
        assert [span.name for span in pipeline.spans()] == ["f"]

    async def test_a_task(self, pipeline: Pipeline) -> None:
        go = asyncio.Event()

        async def work() -> int:
            await go.wait()
            pipeline.foreign.start_span("within").end()
            return 5

        @rollout_op(name="spawn")
        def spawn() -> asyncio.Task[int]:
            return asyncio.create_task(work())

        task = spawn()
        assert isinstance(task, asyncio.Task)
        await asyncio.sleep(0)
        assert pipeline.spans() == []
        go.set()
        assert await task == 5
        await asyncio.sleep(0)
        span, within = pipeline.named("spawn"), pipeline.named("within")
        assert loaded(span, semconv.OUTPUT) == 5
        assert within.parent is not None
        assert within.parent.span_id == span.context.span_id

    async def test_a_task_that_is_cancelled(self, pipeline: Pipeline) -> None:
        task = rollout_op(name="f")(lambda: asyncio.create_task(asyncio.sleep(60)))()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert attributes(pipeline.named("f"))[semconv.ERROR_TYPE] == "CancelledError"

    async def test_a_task_whose_error_nobody_asks_for_is_still_told_of(
        self, pipeline: Pipeline
    ) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        async def work() -> None:
            raise OSError("unseen")

        task = rollout_op(name="f")(lambda: asyncio.create_task(work()))()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert attributes(pipeline.named("f"))[semconv.ERROR_TYPE] == "OSError"
        del task
        gc.collect()
        assert [str(context["exception"]) for context in told] == ["unseen"]

    async def test_a_future_that_is_dropped_leaves_no_span_open(self, pipeline: Pipeline) -> None:
        rollout_op(name="f")(lambda: asyncio.get_running_loop().create_future())()
        gc.collect()
        assert [span.name for span in pipeline.spans()] == ["f"]

    def test_a_future_of_a_pool(self, pipeline: Pipeline) -> None:
        go = threading.Event()

        def work(x: int) -> int:
            assert go.wait(60)
            if x < 0:
                raise ValueError("negative")
            return x

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            submit = rollout_op(name="submit")(lambda x: pool.submit(work, x))
            good, bad = submit(1), submit(-1)
            queued = submit(2)
            assert queued.cancel()
            assert [span.name for span in pipeline.spans()] == ["submit"]
            go.set()
            assert good.result() == 1
            assert isinstance(bad.exception(), ValueError)
        cancelled, done, failed = pipeline.spans()
        assert attributes(cancelled)[semconv.ERROR_TYPE] == "CancelledError"
        assert loaded(done, semconv.OUTPUT) == 1
        assert attributes(failed)[semconv.ERROR_TYPE] == "ValueError"

    def test_a_generator(self, pipeline: Pipeline) -> None:
        def items(n: int) -> Iterator[int]:
            yield from range(n)

        given = rollout_op(name="f")(lambda n: items(n))(3)
        assert inspect.isgenerator(given)
        assert next(given) == 0
        assert pipeline.spans() == []
        assert list(given) == [1, 2]
        assert loaded(pipeline.named("f"), semconv.OUTPUT) == {"items": 3, "returned": None}

    async def test_an_async_generator(self, pipeline: Pipeline) -> None:
        async def stream() -> AsyncGenerator[int, None]:
            yield 1
            await asyncio.sleep(0)
            yield 2

        given = rollout_op(name="f")(lambda: stream())()
        assert inspect.isasyncgen(given)
        assert [item async for item in given] == [1, 2]
        assert loaded(pipeline.named("f"), semconv.OUTPUT) == {"items": 2}

    async def test_an_awaitable_of_another_kind_is_handed_on_as_it_is(
        self, pipeline: Pipeline
    ) -> None:
        class Request:
            def __await__(self) -> Generator[Any, Any, int]:
                return asyncio.sleep(0, 4).__await__()

            async def __aenter__(self) -> int:
                return 5

            async def __aexit__(self, *raised: object) -> None: ...

        request = Request()
        send = rollout_op(name="send")(lambda: request)
        assert send() is request
        assert await send() == 4
        async with send() as entered:
            assert entered == 5
        assert [span.name for span in pipeline.spans()] == ["send"] * 3

    def test_outside_a_sampled_trajectory_nothing_is_put_around_it(self) -> None:
        recording.use_tracer_provider(NoOpTracerProvider())

        async def work() -> None: ...

        given = work()
        assert rollout_op(name="f")(lambda: given)() is given
        given.close()
