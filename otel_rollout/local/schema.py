"""The tables of the index. Everything in them can be made anew from the spool's segments."""

from __future__ import annotations

from typing import Final

from otel_rollout.local import facts

VERSION: Final = 3
"""Of the schema; an index of another version is thrown away and made anew."""

_CALL_COLUMNS: Final = ", ".join(
    f"{name} TEXT UNIQUE NOT NULL" if name == "id" else name for name in facts.COLUMNS
)
# Ids are random: in a table ordered by them, a large store would be written all over the file.
TABLES: Final = f"""
CREATE TABLE segments (
  number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, offset INTEGER NOT NULL,
  size INTEGER NOT NULL, damaged INTEGER NOT NULL DEFAULT 0, unreadable INTEGER NOT NULL DEFAULT 0);
CREATE TABLE calls (
  number INTEGER PRIMARY KEY, {_CALL_COLUMNS},
  segment INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX calls_by_trace ON calls (trace);
CREATE INDEX calls_by_segment ON calls (segment);
CREATE TABLE feedback (
  number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, call TEXT NOT NULL, type TEXT NOT NULL,
  name TEXT, value REAL, at REAL NOT NULL, segment INTEGER NOT NULL, offset INTEGER NOT NULL,
  bytes INTEGER NOT NULL);
CREATE INDEX feedback_by_call ON feedback (call);
CREATE INDEX feedback_by_segment ON feedback (segment);
CREATE TABLE trajectories (
  number INTEGER PRIMARY KEY, trace TEXT UNIQUE NOT NULL, project TEXT NOT NULL,
  experiment TEXT NOT NULL, step INTEGER, sample_index, rollout_n INTEGER,
  validate INTEGER NOT NULL, group_id TEXT, grp TEXT, agent TEXT, done INTEGER NOT NULL,
  started REAL, ended REAL, duration REAL, reward REAL, advantage REAL, given_advantage REAL,
  spread REAL, turns INTEGER, prompt_tokens INTEGER, response_tokens INTEGER, tokens INTEGER,
  tools INTEGER, tool_errors INTEGER, errors INTEGER, error TEXT, tool_names TEXT,
  weight_version INTEGER, processes INTEGER, calls INTEGER, bytes INTEGER, version INTEGER);
CREATE INDEX trajectories_by_group ON trajectories (grp);
CREATE INDEX trajectories_by_step ON trajectories (project, experiment, step, number);
CREATE INDEX trajectories_of_run_by_reward
  ON trajectories (project, experiment, reward, number, errors);
CREATE INDEX trajectories_by_reward ON trajectories (reward, number, errors);
CREATE INDEX trajectories_by_start ON trajectories (started, number);
CREATE INDEX trajectories_of_run_by_start ON trajectories (project, experiment, started, number);
CREATE TABLE groups (
  grp TEXT PRIMARY KEY, project TEXT, experiment TEXT, step INTEGER, sample_index,
  validate INTEGER, n INTEGER, mean REAL, low REAL, high REAL, spread REAL, errors INTEGER,
  response_tokens REAL) WITHOUT ROWID;
CREATE INDEX groups_by_spread ON groups (spread);
CREATE INDEX groups_of_run_by_spread ON groups (project, experiment, spread);
CREATE TABLE steps (
  project TEXT NOT NULL, experiment TEXT NOT NULL, step INTEGER NOT NULL, validate INTEGER NOT NULL,
  trajectories INTEGER, done INTEGER, rewarded INTEGER, mean REAL, low REAL, high REAL,
  mean_square REAL, response_tokens REAL, longest INTEGER, turns REAL, errors INTEGER,
  tool_errors INTEGER, groups INTEGER, flat_groups INTEGER, started REAL, ended REAL,
  PRIMARY KEY (project, experiment, step, validate)) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""

DIRTY: Final = "CREATE TEMP TABLE IF NOT EXISTS dirty (trace TEXT PRIMARY KEY) WITHOUT ROWID"
DIRTY_STEPS: Final = """CREATE TEMP TABLE IF NOT EXISTS dirty_steps
  (project, experiment, step, validate, PRIMARY KEY (project, experiment, step, validate))"""

DIRTY_GROUPS: Final = "CREATE TEMP TABLE IF NOT EXISTS dirty_groups (grp TEXT PRIMARY KEY)"

PUT_CALL: Final = (
    f"INSERT OR REPLACE INTO calls ({', '.join(facts.COLUMNS)}, segment, offset, bytes) "
    f"VALUES ({', '.join('?' * (len(facts.COLUMNS) + 3))})"
)
PUT_FEEDBACK: Final = """INSERT OR REPLACE INTO feedback
  (id, call, type, name, value, at, segment, offset, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# Of several values the last counts, in whatever segment it is: a reward may be corrected later.
_LAST_FEEDBACK: Final = """(SELECT f.value FROM calls c2
    JOIN feedback f ON f.call = c2.id JOIN segments s ON s.number = f.segment
    WHERE c2.trace = c.trace AND {among} AND f.name = '{name}' AND f.value IS NOT NULL
    ORDER BY f.at DESC, s.name DESC, f.offset DESC LIMIT 1)"""
_REWARD: Final = f"""coalesce(
    {_LAST_FEEDBACK.format(among="c2.root = 1", name="reward")},
    max(CASE WHEN root THEN reward END),
    {_LAST_FEEDBACK.format(among="c2.root = 0", name="reward")}, max(reward))"""
_ADVANTAGE: Final = _LAST_FEEDBACK.format(among="c2.root = 1", name="advantage")

# A trace is a trajectory when one of its calls knows its place in a rollout or is its root.
FOLD_TRAJECTORIES: Final = f"""
INSERT INTO trajectories (trace, project, experiment, step, sample_index, rollout_n, validate,
  group_id, agent, done, started, ended, duration, reward, given_advantage, turns, prompt_tokens,
  response_tokens, tokens, tools, tool_errors, errors, error, tool_names, weight_version, processes,
  calls, bytes, version)
SELECT trace, max(project), coalesce(max(experiment), ''), max(step), max(sample_index),
  max(rollout_n), max(validate), max(group_id), max(CASE WHEN kind = 'agent' THEN name END),
  max(root), min(started), max(ended), max(ended) - min(started), {_REWARD}, {_ADVANTAGE},
  sum(turn), min(tokens_in), sum(tokens_out), max(coalesce(tokens_in, 0) + coalesce(tokens_out, 0)),
  sum(kind = 'tool'), sum(kind = 'tool' AND error IS NOT NULL), sum(error IS NOT NULL),
  coalesce(max(CASE WHEN kind = 'tool' THEN error END), max(error)),
  ',' || group_concat(DISTINCT CASE WHEN kind = 'tool' THEN replace(name, ',', ' ') END) || ',',
  max(weight_version), count(DISTINCT process), count(*), sum(bytes), :version
FROM calls c WHERE trace IN (SELECT trace FROM dirty) GROUP BY trace
ON CONFLICT (trace) DO UPDATE SET
  project = excluded.project, experiment = excluded.experiment, step = excluded.step,
  sample_index = excluded.sample_index, rollout_n = excluded.rollout_n,
  validate = excluded.validate, group_id = excluded.group_id, agent = excluded.agent,
  done = excluded.done, started = excluded.started, ended = excluded.ended,
  duration = excluded.duration, reward = excluded.reward,
  given_advantage = excluded.given_advantage, turns = excluded.turns,
  prompt_tokens = excluded.prompt_tokens, response_tokens = excluded.response_tokens,
  tokens = excluded.tokens, tools = excluded.tools, tool_errors = excluded.tool_errors,
  errors = excluded.errors, error = excluded.error, tool_names = excluded.tool_names,
  weight_version = excluded.weight_version, processes = excluded.processes,
  calls = excluded.calls, bytes = excluded.bytes, version = excluded.version
"""
NAME_GROUPS: Final = """UPDATE trajectories
  SET grp = group_name(project, experiment, step, validate, coalesce(group_id, sample_index))
  WHERE trace IN (SELECT trace FROM dirty)"""

TOUCH_GROUPS: Final = """INSERT OR IGNORE INTO temp.dirty_groups SELECT DISTINCT grp
  FROM trajectories WHERE grp IS NOT NULL AND trace IN (SELECT trace FROM dirty)"""
FORGET_GROUPS: Final = "DELETE FROM groups WHERE grp IN (SELECT grp FROM temp.dirty_groups)"
FOLD_GROUPS: Final = """
INSERT INTO groups
SELECT grp, max(project), max(experiment), max(step), max(sample_index), max(validate), count(*),
  avg(reward), min(reward), max(reward),
  CASE WHEN count(reward) > 1 THEN max(reward) - min(reward) END,
  sum(errors > 0), avg(response_tokens)
FROM trajectories WHERE grp IN (SELECT grp FROM temp.dirty_groups) GROUP BY grp
"""

FOLD_STEPS: Final = """
INSERT OR REPLACE INTO steps
SELECT t.project, t.experiment, coalesce(t.step, -1) AS at, t.validate, count(*), sum(done),
  count(reward), avg(reward), min(reward), max(reward), avg(reward * reward),
  avg(response_tokens), max(response_tokens), avg(turns), sum(errors > 0), sum(tool_errors > 0),
  count(DISTINCT grp), count(DISTINCT CASE WHEN spread = 0 THEN grp END), min(started), max(ended)
FROM trajectories t JOIN temp.dirty_steps d ON t.project = d.project
  AND t.experiment = d.experiment AND t.step IS d.step AND t.validate = d.validate
GROUP BY t.project, t.experiment, at, t.validate
"""
