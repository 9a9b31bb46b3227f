/** The search's syntax as far as it takes to complete what is being typed. The API says what is wrong with it. */

import type { Names, Run } from "src/pages/Runs/figures";

/** What may stand where the cursor is: `text` replaces what lies from `from` to the cursor. */
export interface Completion {
  text: string;
  hint: string;
  from: number;
}

const ATTRIBUTES: Record<string, string> = {
  run_name: "attribute, text",
  status: "attribute: RUNNING, FINISHED, FAILED, KILLED",
  start_time: "attribute, milliseconds since the epoch",
  end_time: "attribute, milliseconds since the epoch",
  duration: "attribute, seconds",
};
const STATES = ["FINISHED", "RUNNING", "FAILED", "KILLED"];
const NUMBER_OPERATORS = [">", ">=", "<", "<=", "=", "!="];
const TEXT_OPERATORS = ["=", "!=", "LIKE", "ILIKE", "IN", "IS NULL", "IS NOT NULL"];
const TOKENS =
  /\s+|<=|>=|!=|[=<>]|-?[\d.]+(?:[eE][+-]?\d+)?|[A-Za-z_]\w*(?:\.(?:[\w/-]*|`[^`]*`?))*|'[^']*'?|"[^"]*"?|\([^)]*\)?|./g;
const MOST = 12;

interface Token {
  text: string;
  from: number;
}

/** What may come at the cursor, best first. */
export function complete(filter: string, cursor: number, names: Names, runs: readonly Run[]): Completion[] {
  const typed = tokensOf(filter.slice(0, cursor));
  const last = typed.at(-1);
  const touching = last !== undefined && last.from + last.text.length === cursor;
  const open = touching && last ? last.text : "";
  const from = touching && last ? last.from : cursor;
  const before = (touching ? typed.slice(0, -1) : typed).map(({ text }) => text);
  return candidates(before, names, runs)
    .filter(({ text }) => text.toLowerCase().includes(open.toLowerCase()) && text !== open)
    .sort((a, b) => Number(b.text.startsWith(open)) - Number(a.text.startsWith(open)))
    .slice(0, MOST)
    .map((each) => ({ ...each, from }));
}

/** A name as the syntax takes it: in backticks where it has other characters than letters, digits, `_` and dots. */
function quoted(entity: "metrics" | "params" | "tags", name: string): string {
  return /^[A-Za-z_]\w*(\.\w+)*$/.test(name) ? `${entity}.${name}` : `${entity}.\`${name}\``;
}

/** Filters to begin with, made of names that are there. */
export function examplesOf(names: Names): string[] {
  const [metric] = names.metrics;
  const param = names.varying[0] ?? names.params[0];
  return [
    ...(metric ? [`${quoted("metrics", metric)} > 0.7`] : []),
    ...(param ? [`${quoted("params", param)} = '…'`] : []),
    "status = 'FAILED'",
    "run_name LIKE '%manual%'",
    ...(metric && param ? [`${quoted("metrics", metric)} > 0.7 AND ${quoted("params", param)} IS NOT NULL`] : []),
  ];
}

function tokensOf(text: string): Token[] {
  return [...text.matchAll(TOKENS)]
    .map((match) => ({ text: match[0], from: match.index }))
    .filter(({ text: token }) => token.trim() !== "");
}

function candidates(before: readonly string[], names: Names, runs: readonly Run[]): Omit<Completion, "from">[] {
  const start = before.findLastIndex((token) => token.toUpperCase() === "AND") + 1;
  const [name, ...rest] = before.slice(start);
  if (name === undefined) {
    return namesAsCandidates(names);
  }
  const isNumber = name.startsWith("metric") || name.endsWith("_time") || name === "duration";
  const operator = rest.join(" ").toUpperCase();
  if (rest.length === 0) {
    return (isNumber ? NUMBER_OPERATORS : TEXT_OPERATORS).map((text) => ({ text, hint: "operator" }));
  }
  if (operator === "IS") {
    return ["NULL", "NOT NULL"].map((text) => ({ text, hint: "operator" }));
  }
  if (rest.length === 1 && !isNumber) {
    return valuesOf(name, runs).map((text) => ({ text: operator === "IN" ? `(${text})` : text, hint: "value" }));
  }
  return rest.length >= 2 || operator.startsWith("IS ") ? [{ text: "AND", hint: "a further comparison" }] : [];
}

function namesAsCandidates(names: Names): Omit<Completion, "from">[] {
  return [
    ...names.metrics.map((name) => ({ text: quoted("metrics", name), hint: "metric" })),
    ...names.params.map((name) => ({ text: quoted("params", name), hint: "parameter" })),
    ...Object.entries(ATTRIBUTES).map(([text, hint]) => ({ text, hint })),
    ...names.tags.map((name) => ({ text: quoted("tags", name), hint: "tag" })),
    { text: "tags.`hops.run_id`", hint: "tag: the DAG run" },
    { text: "tags.`hops.task_id`", hint: "tag: the task" },
  ];
}

function valuesOf(name: string, runs: readonly Run[]): string[] {
  if (name === "status") {
    return STATES.map((state) => `'${state}'`);
  }
  const [, kind, entry] = /^(param(?:eter)?|tag)s?\.`?([^`]*)`?$/.exec(name) ?? [];
  if (entry === undefined) {
    return [];
  }
  const values = new Set(
    runs.map((run) => (kind === "tag" ? run.tags : run.params)[entry]).filter((value) => value !== undefined),
  );
  return [...values].filter((value) => !value.includes("'")).map((value) => `'${value}'`);
}
