-- The database is a cache of the files under $LAB_HOME (docs/design.md). One ingester writes it.
-- A table schema_version holds the SHA-256 of this file: a database made for another one is built anew.
-- FLOPs are DOUBLE: training budgets exceed 9.2e18, the end of BIGINT.

CREATE TABLE plans (
    sweep TEXT, plan_id TEXT, scale TEXT, question TEXT, baseline TEXT, smallest_effect DOUBLE,
    match_tolerance DOUBLE,
    -- of a tuned sweep: tune, widen or verdict, and the id of its first plan; else NULL
    stage TEXT, tuning TEXT,
    created_at TEXT, last_call_at TEXT, code_hash TEXT, plan JSON
);

-- Which run stands for which arm and seed; one run may belong to several plans. A tuning run names the arm that it
-- tunes and what it tries; its own arm is both.
CREATE TABLE plan_runs (
    sweep TEXT, plan_id TEXT, ord INTEGER, run_id TEXT, arm TEXT, seed BIGINT, match_residual DOUBLE,
    tunes TEXT, params JSON
);

-- Trials of a search: the parameters asked for, and what the sampler was told (state RUNNING until then).
-- The loss is that of the run; value is the run's initial loss where it diverged or ended above it.
CREATE TABLE trials (
    sweep TEXT, plan_id TEXT, trial BIGINT, run_id TEXT, params JSON, state TEXT, outcome TEXT, value DOUBLE
);

CREATE TABLE runs (
    run_id TEXT, group_id TEXT, seed BIGINT, state TEXT, kind TEXT, step BIGINT, steps BIGINT, attempts BIGINT,
    params BIGINT, params_non_embedding BIGINT, flops_per_token DOUBLE, train_flops DOUBLE, tokens BIGINT,
    kv_bytes_per_token DOUBLE, data_name TEXT, data_fingerprint TEXT, tokenizer TEXT, vocab BIGINT,
    train_tokens BIGINT, bytes_per_token DOUBLE,
    train_loss DOUBLE, val_loss DOUBLE, val_perplexity DOUBLE, val_bits_per_byte DOUBLE,
    wall_s DOUBLE, tokens_per_s DOUBLE, peak_memory_bytes BIGINT, weights_sha256 TEXT, finished_at TEXT,
    config JSON, account JSON
);

-- until_step: the smallest resume_step of a later attempt, or NULL. Rows in (resume_step, until_step] are this attempt's.
CREATE TABLE attempts (
    run_id TEXT, attempt INTEGER, host TEXT, pid BIGINT, job TEXT, code_hash TEXT, claimed_at TEXT, started_at TEXT,
    ended_at TEXT, reason TEXT, kind TEXT, error TEXT, resume_step BIGINT, until_step BIGINT, env JSON
);

CREATE TABLE snapshots (code_hash TEXT, git_sha TEXT, dirty BOOLEAN, git_diff TEXT, created_at TEXT);

-- Every whole line of every attempt, as written (the newest; see segments).
CREATE TABLE train_rows (
    run_id TEXT, attempt INTEGER, step BIGINT, tokens BIGINT, flops DOUBLE, wall_s DOUBLE,
    loss DOUBLE, lr DOUBLE, grad_norm DOUBLE, tokens_per_s DOUBLE
);
CREATE TABLE eval_rows (
    run_id TEXT, attempt INTEGER, step BIGINT, split TEXT, tokens BIGINT, loss DOUBLE, perplexity DOUBLE,
    bits_per_byte DOUBLE
);
-- loss: mean over positions start to stop - 1 of the validation sequences; position t has t tokens before it.
CREATE TABLE position_rows (
    run_id TEXT, attempt INTEGER, step BIGINT, split TEXT, start BIGINT, stop BIGINT, loss DOUBLE
);
-- layer: from 0, or -1 for the whole model. What each name means: lmcore/telemetry.py.
CREATE TABLE telemetry_rows (run_id TEXT, attempt INTEGER, step BIGINT, name TEXT, layer BIGINT, value DOUBLE);

-- Pictures of long runs are drawn from bins of steps (results/bins.py), never from every row; numbers never come from here.
-- One row or, of a bin that was read in several pieces, several. loss: total is over its n finite values, low and high are
-- the extremes of those, at low_step and high_step; n_bad values are NaN or infinite, the first at bad_step.
CREATE TABLE bin_rows (
    run_id TEXT, attempt INTEGER, bin BIGINT, n BIGINT, n_bad BIGINT, total DOUBLE, low DOUBLE, high DOUBLE,
    low_step BIGINT, high_step BIGINT, bad_step BIGINT, first_step BIGINT, last_step BIGINT,
    first_tokens BIGINT, last_tokens BIGINT, first_flops DOUBLE, last_flops DOUBLE, first_wall_s DOUBLE, last_wall_s DOUBLE
);
-- What an attempt owns of the bins that a resume cut in two, made from its rows.
CREATE TABLE bin_cuts AS FROM bin_rows;

-- `lab decode`: what generating with a run's model costs. Seconds; bytes of the whole batch's cache.
CREATE TABLE decode (
    run_id TEXT, batch BIGINT, prompt BIGINT, new BIGINT, prefill_s DOUBLE, token_s DOUBLE, tokens_per_s DOUBLE,
    cache_bytes BIGINT, cache_bytes_counted BIGINT, device TEXT, measured_at TEXT
);

-- `lab lengths`: mean loss at positions start to stop - 1 of sequences of context tokens, longer than in training, with
-- RoPE as it was trained (none) or stretched.
CREATE TABLE lengths (
    run_id TEXT, context BIGINT, scaling TEXT, start BIGINT, stop BIGINT, loss DOUBLE, measured_at TEXT
);

CREATE TABLE quarantine (folder TEXT, path TEXT, byte_offset BIGINT, reason TEXT, content TEXT);

-- How far each file has been read: rows before byte_offset are in the tables above, or, if spilled, in a segment.
-- identity: who wrote the file, and its last line before byte_offset; with another one it is another file.
CREATE TABLE ledger (folder TEXT, path TEXT, byte_offset BIGINT, identity TEXT, spilled BOOLEAN);

-- What each folder (a run, a plan, a snapshot) looked like when it was read; empty: read it again.
CREATE TABLE seen (folder TEXT, signature TEXT);

-- Files with rows that became too many for a database that is copied at every ingest (results/segments.py).
CREATE TABLE segments (kind TEXT, path TEXT, rows BIGINT);
CREATE VIEW train_all AS SELECT * FROM train_rows;
CREATE VIEW eval_all AS SELECT * FROM eval_rows;
CREATE VIEW position_all AS SELECT * FROM position_rows;
CREATE VIEW telemetry_all AS SELECT * FROM telemetry_rows;
CREATE VIEW bin_all AS SELECT * FROM bin_rows;

-- What analysis reads: exactly one row per (run, step), or (run, step, start) or (run, step, name, layer), whatever kills
-- and rewinds came between.
-- An evaluation before the first update (step 0) belongs to the last attempt that started at 0.
CREATE VIEW train AS
SELECT t.* FROM train_all t JOIN attempts a USING (run_id, attempt)
WHERE t.step > a.resume_step AND (a.until_step IS NULL OR t.step <= a.until_step);

CREATE VIEW evals AS
SELECT e.* FROM eval_all e JOIN attempts a USING (run_id, attempt)
WHERE (e.step > a.resume_step AND (a.until_step IS NULL OR e.step <= a.until_step))
   OR (e.step = 0 AND a.resume_step = 0 AND (a.until_step IS NULL OR a.until_step > 0));

CREATE VIEW positions AS
SELECT p.* FROM position_all p JOIN attempts a USING (run_id, attempt)
WHERE (p.step > a.resume_step AND (a.until_step IS NULL OR p.step <= a.until_step))
   OR (p.step = 0 AND a.resume_step = 0 AND (a.until_step IS NULL OR a.until_step > 0));

CREATE VIEW telemetry AS
SELECT t.* FROM telemetry_all t JOIN attempts a USING (run_id, attempt)
WHERE t.step > a.resume_step AND (a.until_step IS NULL OR t.step <= a.until_step);

-- The bins of `train`. A bin of which an attempt owns a part only is in bin_cuts.
CREATE VIEW train_bins AS
SELECT b.* FROM bin_all b JOIN attempts a USING (run_id, attempt)
WHERE b.first_step > a.resume_step AND (a.until_step IS NULL OR b.last_step <= a.until_step)
UNION ALL BY NAME FROM bin_cuts;
