"""For your own tests: the trajectories that a piece of code makes, in memory.

::

    from otel_rollout.testing import captured

    def test_my_loop() -> None:
        with captured() as rollouts:
            asyncio.run(my_loop("What is 6 times 7?"))
        one = rollouts.only(step=3)
        one.assert_tools("search", "calculator")
        one.assert_reward(1.0)

Nothing is written to disk or sent; the environment's settings are not read. What is seen is what a
store or a Weave project would hold: the spans go through :class:`otel_rollout.RolloutSpanProcessor`
and are put together again as by :mod:`otel_rollout.local`.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from otel_rollout import recording, semconv
from otel_rollout import settings as settings_module
from otel_rollout.exporters.weave import calls
from otel_rollout.local import trajectory as reader
from otel_rollout.local.facts import error_of, number
from otel_rollout.local.trajectory import Tokens, Turn
from otel_rollout.processor import sampling
from otel_rollout.processor.following import FollowingSampler
from otel_rollout.processor.processor import RolloutSpanProcessor
from otel_rollout.randomness import IdGenerator
from otel_rollout.settings import Settings

__all__ = [
    "Captured",
    "CapturedTrajectory",
    "InMemoryExporter",
    "Tokens",
    "ToolCall",
    "Turn",
    "captured",
]

_FLUSH_MS: Final = 30_000
_IDENTITY: Final = frozenset(
    {
        semconv.STEP,
        semconv.SAMPLE_INDEX,
        semconv.ROLLOUT_N,
        semconv.VALIDATE,
        semconv.EXPERIMENT_NAME,
        semconv.GROUP_ID,
        semconv.PROJECT,
    }
)
_OUTCOME: Final = (
    frozenset(
        value
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str) and value.startswith(semconv.PREFIX)
    )
    - _IDENTITY
)


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool.

    ``name``: of the tool. ``arguments``: by name, as they were given. ``result``: what it returned,
    as JSON has it. ``error``: type and message, ``None`` where it did not fail.
    """

    name: str
    arguments: dict[str, Any]
    result: Any
    error: tuple[str, str] | None = None


@dataclass(eq=False)
class CapturedTrajectory:
    """One trajectory with all that is known of it; nested ones are part of their outermost.

    As text it is the tree that ``otel-rollout show`` prints; a failed assertion shows it too.
    """

    spans: list[ReadableSpan]
    """All spans, in order of their start, with the attributes that exporters see."""
    _read: reader.Trajectory = field(repr=False)

    # --- what it is ------------------------------------------------------------------------------

    @property
    def root(self) -> ReadableSpan | None:
        """The span of ``trajectory(...)`` itself; ``None`` while it is open."""
        return next((span for span in self.spans if span.parent is None), None)

    @property
    def finished(self) -> bool:
        """Whether the block of ``trajectory(...)`` has been left."""
        return self.root is not None

    @property
    def identity(self) -> dict[str, Any]:
        """What was given to ``trajectory(...)``, by its short names, with its types."""
        span = self.root or self.spans[0]
        return {
            key.removeprefix(semconv.PREFIX): value
            for key, value in (span.attributes or {}).items()
            if key.startswith(semconv.PREFIX) and key not in _OUTCOME
        }

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes of the root span, by their full names; empty while it is open."""
        return dict(self.root.attributes or {}) if self.root is not None else {}

    # --- what happened ---------------------------------------------------------------------------

    def spans_of(self, operation: str) -> list[ReadableSpan]:
        """Return the spans of an ``operation`` (``gen_ai.operation.name``), or else of this name.

        ``text_completion``, ``chat``, ``execute_tool``, ``invoke_agent``, ``evaluate``. Raises
        nothing: where there is none, the list is empty.
        """
        return [
            span
            for span in self.spans
            if operation in ((span.attributes or {}).get(semconv.OPERATION), span.name)
        ]

    @property
    def generations(self) -> list[Turn]:
        """What the policy generated, in order of its end: prompts whole again, token ids, text."""
        return self._read.turns

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools, in order of their start."""
        return [
            _tool_call(node.call)
            for node in self._read.nodes
            if reader.value_of(node.call, "weave", "kind") == "tool"
        ]

    @property
    def errors(self) -> list[tuple[str, str, str]]:
        """Of each failed span its name, its error's type, and the message, in order of start."""
        return [
            (str(call["op_name"]), kind, message) for call, kind, message in self._read.errors()
        ]

    @property
    def rewards(self) -> dict[str, float | None]:
        """The last score of each source that ``record_reward`` was called with."""
        return {
            str(one["payload"]["name"]): number(one["payload"]["value"])
            for one in self._read.feedback
        }

    @property
    def reward(self) -> float | None:
        """The trajectory's own reward; ``None`` where none was recorded."""
        return self.rewards.get("reward")

    @property
    def prompt_text(self) -> str:
        """Text of the first prompt; empty without text or a tokenizer."""
        return self._read.prompt_text

    @property
    def response_text(self) -> str:
        """Text behind the first prompt, tools' results included."""
        return self._read.response_text

    def tokens(self) -> Tokens:
        """Return the tokens behind the first prompt, with mask and log-probabilities.

        Raises nothing: what is not known is left out.
        """
        return self._read.tokens()

    # --- assertions ------------------------------------------------------------------------------

    def assert_identity(self, **expected: Any) -> None:
        """Assert that these values were given to ``trajectory(...)``; others may be there too.

        ``expected``: short names (``step`` …) to values, of the same type. Raises
        ``AssertionError`` with the whole trajectory, as all of these do.
        """
        found = {name: self.identity.get(name) for name in expected}
        # True == 1, but a filter on the one does not find the other.
        same = all(
            type(found[name]) is type(value) and found[name] == value
            for name, value in expected.items()
        )
        self._assert(same, f"identity: expected {expected!r}, found {found!r}")

    def assert_reward(self, expected: float, *, name: str = "reward", within: float = 1e-9) -> None:
        """Assert the last reward of a source: ``expected``, give or take ``within``.

        ``name``: of the source, as given to ``record_reward``. Raises ``AssertionError``.
        """
        found = self.rewards.get(name)
        same = found is not None and math.isclose(found, expected, rel_tol=0, abs_tol=within)
        self._assert(same, f"{name}: expected {expected!r}, found {found!r}")

    def assert_tools(self, *names: str) -> None:
        """Assert that exactly the tools of these ``names`` were called, in this order.

        Raises ``AssertionError``.
        """
        found = tuple(call.name for call in self.tool_calls)
        self._assert(found == names, f"tools: expected {names!r}, found {found!r}")

    def assert_tool_called(self, name: str, **arguments: Any) -> ToolCall:
        """Assert that the tool ``name`` was called with ``arguments`` among its own.

        Returns the first such call. Raises ``AssertionError``.
        """
        of_name = [call for call in self.tool_calls if call.name == name]
        for call in of_name:
            if {**call.arguments, **arguments} == call.arguments:
                return call
        found = [call.arguments for call in of_name]
        message = f"tool {name!r}: expected a call with {arguments!r}, found {found!r}"
        raise AssertionError(f"{message}\n\n{self}")

    def assert_no_errors(self) -> None:
        """Assert that no span of the trajectory failed; raises ``AssertionError``."""
        self._assert(not self.errors, f"errors: expected none, found {self.errors!r}")

    def _assert(self, condition: bool, message: str) -> None:
        if not condition:
            raise AssertionError(f"{message}\n\n{self}")

    def __str__(self) -> str:
        from rich.console import Console

        from otel_rollout.local import show

        text = io.StringIO()
        console = Console(file=text, width=120, no_color=True, highlight=False)
        for root in self._read.roots:
            show.print_trajectory(console, root)
        return text.getvalue().rstrip()


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    name = reader.value_of(call, "gen_ai", "tool", "name")
    inputs = call.get("inputs")
    return ToolCall(
        str(name if name is not None else call.get("op_name")),
        dict(inputs) if isinstance(inputs, dict) else {},
        call.get("output"),
        error_of(call["exception"]) if call.get("exception") is not None else None,
    )


class InMemoryExporter(InMemorySpanExporter):
    """Keeps spans with their whole payload; for behind a ``RolloutSpanProcessor`` of your own.

    :func:`captured` sets one up. ``get_finished_spans()`` and ``clear()`` are the SDK's.
    """

    rollout_payload = "full"

    def trajectories(self) -> list[CapturedTrajectory]:
        """Return the trajectories of what was exported so far, in order of their start.

        Raises nothing: before the first one the list is empty.
        """
        traces: dict[int, list[ReadableSpan]] = {}
        for span in self.get_finished_spans():
            if span.context is not None and calls.belongs_to_trajectory(span):
                traces.setdefault(span.context.trace_id, []).append(span)
        found = [_trajectory(trace, spans) for trace, spans in traces.items()]
        return sorted(found, key=lambda one: one.spans[0].start_time or 0)


def _trajectory(trace: int, spans: list[ReadableSpan]) -> CapturedTrajectory:
    feedback = [one for span in spans for one in calls.feedback_of(span)]
    feedback.sort(key=lambda one: str(one["created_at"]))
    facts: dict[str, Any] = {"trace": f"{trace:032x}", "reward": None}
    made = [calls.call_of(span) for span in spans if not calls.is_no_call(span)]
    read = reader.put_together(facts, made, feedback)
    return CapturedTrajectory(sorted(spans, key=lambda span: span.start_time or 0), read)


class Captured:
    """What :func:`captured` gives: the trajectories until now, and the provider that made them.

    ``configuration``: the settings that hold meanwhile.
    """

    def __init__(self, configuration: Settings) -> None:
        self.configuration = configuration
        self.exporter = InMemoryExporter()
        self._processor = RolloutSpanProcessor(self.exporter, configuration=configuration)
        self.tracer_provider = TracerProvider(
            sampler=FollowingSampler(ParentBased(ALWAYS_ON)),
            id_generator=IdGenerator(),
            shutdown_on_exit=False,
        )
        """For other instrumentations: ``HTTPXClientInstrumentor().instrument(tracer_provider=…)``,
        and for spans of your own, ``tracer_provider.get_tracer(…)``."""
        self.tracer_provider.add_span_processor(self._processor)

    @property
    def trajectories(self) -> list[CapturedTrajectory]:
        """The trajectories of which anything has ended, in order of their start."""
        self._processor.force_flush(_FLUSH_MS)
        return self.exporter.trajectories()

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended, those outside any trajectory too, in order of their end."""
        self._processor.force_flush(_FLUSH_MS)
        return list(self.exporter.get_finished_spans())

    def only(self, **identity: Any) -> CapturedTrajectory:
        """Return the only trajectory with these values.

        ``identity``: short names (``step`` …) to values. Raises ``AssertionError``, with all that
        there are, where it is not one.
        """
        all_of_them = self.trajectories
        found = [one for one in all_of_them if {**one.identity, **identity} == one.identity]
        if len(found) == 1:
            return found[0]
        known = "\n".join(f"  {one.identity}" for one in all_of_them) or "  none at all"
        raise AssertionError(
            f"expected one trajectory with {identity!r}, found {len(found)} among:\n{known}"
        )

    def clear(self) -> None:
        """Forget what was captured until now. Raises nothing."""
        self._processor.force_flush(_FLUSH_MS)
        self.exporter.clear()


_active: list[Captured] = []


@contextlib.contextmanager
def captured(configuration: Settings | None = None) -> Iterator[Captured]:
    """Capture in memory what is traced within the block, in place of what was set up before.

    Afterwards everything is as before; what was captured can still be read. For one test at a time
    in a process, and for what happens in this process. Gives the :class:`Captured`; what the block
    raises is unchanged.

    Args:
        configuration: settings to try instead of the defaults, such as
            ``Settings(sample_rate=0.5)`` of :mod:`otel_rollout.settings`.

    ::

        @pytest.fixture
        def rollouts() -> Iterator[Captured]:
            with captured() as found:
                yield found
    """
    found = Captured(configuration if configuration is not None else Settings())
    _active.append(found)
    _use(found)
    try:
        yield found
    finally:
        _active.remove(found)
        _use(_active[-1] if _active else None)
        found.tracer_provider.shutdown()


def _use(chosen: Captured | None) -> None:
    """Let spans, settings and sampling be those of a capture; ``None``: the process's own."""
    recording.use_tracer_provider(chosen.tracer_provider if chosen is not None else None)
    settings_module.configure(chosen.configuration if chosen is not None else None)
    sampling.use_sampler(None)  # made from the settings when it is asked first
