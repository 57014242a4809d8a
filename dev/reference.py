#!/usr/bin/env python3
"""Write docs/reference.md from the source: attributes, calls, files, settings.

    python dev/reference.py          print it
    python dev/reference.py --write  put it in its place

A test compares the page with what this prints.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from otel_rollout import semconv, settings
from otel_rollout.exporters import spool
from otel_rollout.exporters.weave import calls
from otel_rollout.local.expression import FIELDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"

HEAD = """# Data reference

<!-- Made by dev/reference.py of the source; a test keeps it so. -->

## Spans

| span | stands for |
|---|---|
| `rollout {{agent}}` | a trajectory, from its first prompt to its reward: the root of a trace of its own, linked to the span that was current |
| `invoke_agent {{agent}}` | the run of an agent loop; `rollout_op(kind="agent")` |
| `text_completion {{model}}` | a generation, token ids in and out |
| `chat {{model}}` | a generation of messages; `rollout_op(kind="llm")` |
| `execute_tool {{tool}}` | a tool call; `rollout_op(kind="tool")` |
| `evaluate {{name}}` | scoring |

Ours have the instrumentation scope `{scope}`. Every span in a trajectory, those of other
instrumentations too, has the trajectory's values; with the prefix `{prefix}` they are baggage keys
as well, also for values that you add yourself (`trajectory(lane="fast")`: `{prefix}lane`). A failed
span has status ERROR, `error.type`, and an exception event where there was an exception.

What becomes JSON, token data or text is put on the span by the processor's worker thread.
`OTEL_ROLLOUT_OTLP_PAYLOAD` says what of it exporters other than Weave's get: `full` all of it,
`text` no token data, `none` none of it.
"""

CALLS = """## Weave calls

Each span of a trajectory is one call. The same span always gives the same call, byte for byte.

| field | holds |
|---|---|
| `id`, `trace_id`, `parent_id` | the span's, in hex |
| `thread_id` | the trace id: a thread for each trajectory |
| `turn_id` | the root's own id; none below it |
| `op_name`, `display_name` | the span's name, at most {op_name} and {display_name} characters |
| `started_at`, `ended_at` | the span's times, in microseconds |
| `attributes` | {flat}, as numbers and booleans; `weave.kind` (agent, llm, tool, scorer); `process`; `links`; `events`; and every other attribute, nested at its dots |
| `inputs` | of a generation `messages`; of a tool its arguments; of `rollout_op` its arguments |
| `output` | of a generation `choices`; of a tool and of `rollout_op` what it returned; of the root `prompt_text`, `response_text`, `reward` |
| `summary` | `usage` by model where tokens were made, `weave.status`, `weave.latency_ms` |
| `exception` | of a failed span: JSON of type and message |
| `wb_run_id`, `wb_run_step` | the W&B run of the process, where it is of the same project |

Each reward is feedback of type `reward` on the call of its span: `{{"name", "value", …detail}}`.
One that comes after the end of its trajectory (a span with `{afterwards}`) is feedback on the root's
call, and no call of its own.
"""

FILES = """## Files

`OTEL_ROLLOUT_DIR` holds:

| file | is |
|---|---|
| `spool/TIME-HOST-PID-NUMBER{suffix}` | a segment: the calls and feedback of one process, append-only |
| `…{suffix}{sent}` | the offset up to which it is delivered |
| `…{suffix}{dead}` | calls that the server refused for good, and why |
| `spool/TIME-HOST-PID-NUMBER{pending}` | the same of trajectories that [tail rules](sampling.md) have yet to decide about: nobody sends or shows it |
| `…{suffix}{keep}` | there where the segment holds records of a later version: it is not removed |
| `spool/{dropped}` | ids of the trajectories that were dropped to keep within the disk limit, one a line |
| `processes/HOST-PID.json` | counters of a process |
| `tokenizers/MODEL.json` | a model's tokenizer, for the text of single tokens |
| `index.sqlite` | the viewer's index; it can be removed and is made anew |

A segment is a sequence of records, format {format}:

```text
RS crc32(8 hex) TAB meta-json TAB body-json LF
```

RS is the byte 0x1E; the checksum is of what stands between it and the LF. `meta.kind` is
`{header}`, `{call}` or `{feedback}`; a call's body is the call without `project_id`, and
`meta.project` says where it goes.

A file of `otel-rollout export` has one row a trajectory: `trace_id`, `project`, `experiment_name`,
`step`, `sample_index`, `rollout_n`, `validate`, `group_id`, `reward`, `advantage`, `finished`,
`started`, `seconds`, `turns`, `weight_version`, `prompt_text`, `response_text`, `prompt_ids`,
`response_ids` (all tokens behind the first prompt), `response_mask` (1: made by the policy),
`response_logprobs` (NaN: none), `context_breaks`, `tools`, `errors`.
"""

FILTER = """## Fields of a filter

In the viewer and in `otel-rollout export --filter`.

| field | meaning |
|---|---|
"""


def attributes() -> Iterator[str]:
    """Yield a table for each section of semconv.py."""
    source = Path(semconv.__file__).read_text()
    docs = {}
    body = ast.parse(source).body
    for here, after in itertools.pairwise(body):
        if (
            isinstance(here, ast.AnnAssign)
            and isinstance(here.target, ast.Name)
            and isinstance(here.value, ast.Constant)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            docs[here.target.id] = (str(here.value.value), str(after.value.value))
    for section in re.split(r"^# --- ", source, flags=re.M)[1:]:
        title = section.partition(" --")[0].partition("\n")[0].strip()
        names = re.findall(r"^([A-Z_]+): Final = ", section, re.M)
        yield f"\n### {title[0].upper()}{title[1:]}\n"
        yield "| name | type | on | meaning |\n|---|---|---|---|"
        for name in names:
            if name in docs:
                yield row(*docs[name])


def row(name: str, doc: str) -> str:
    """Return a row of ``TYPE; WHERE: meaning``; each part but the last may be left out."""
    text = " ".join(doc.replace("``", "`").split())
    before, colon, meaning = text.partition(": ")
    if not colon:
        before, meaning = text.rstrip("."), ""
    kind, semicolon, where = before.partition("; ")
    if not semicolon and kind not in _KINDS:
        kind, where = "", kind
    return f"| `{name}` | {kind} | {where} | {meaning.rstrip('.')} |"


_KINDS = {"int", "float", "str", "bool", "JSON", "event", "base64"}


def page() -> str:
    """Return the whole page."""
    flat = ", ".join(f"`{name}`" for name in calls._FLAT.values())
    parts = [
        HEAD.format(scope=semconv.SCOPE, prefix=semconv.PREFIX),
        "## Attributes",
        *attributes(),
        "",
        CALLS.format(
            op_name=calls.MAX_OP_NAME,
            display_name=f"{calls.MAX_DISPLAY_NAME:,}",
            flat=flat,
            afterwards=semconv.AFTERWARDS,
        ),
        FILES.format(
            suffix=spool.SUFFIX,
            sent=spool.SENT_SUFFIX,
            dead=spool.DEAD_SUFFIX,
            keep=spool.KEEP_SUFFIX,
            pending=spool.PENDING_SUFFIX,
            dropped=spool.DROPPED_NAME,
            format=spool.FORMAT,
            header=spool.HEADER,
            call=spool.CALL,
            feedback=spool.FEEDBACK,
        ),
        FILTER + "\n".join(f"| `{name}` | {one.meaning} |" for name, one in FIELDS.items()),
        "\n## Settings\n",
        settings.table(),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")
