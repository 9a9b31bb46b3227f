/** What a step of a rollout found, in a line: a comparison that was not made does not count as passed. */

import type { Schemas } from "src/api/client";

type Finding = Schemas["CanaryFinding"];

const STATES: Readonly<Record<string, string>> = {
  ok: "ok",
  doubt: "warning",
  unknown: "warning",
  bad: "failed",
  not_judged: "not judged",
};

const NAMES: Readonly<Record<string, string>> = {
  refusals: "refused requests",
  latency_p50: "latency p50",
  latency_p99: "latency p99",
  labels: "loss on labelled rows",
};

/** What is compared. */
export const findingName = (what: string): string => NAMES[what] ?? what;

/** Whether a distance was measured, and there is no limit that it could have passed. */
const isRecordOnly = ({ numbers }: Finding): boolean =>
  numbers.ks_statistic !== undefined && numbers.max_prediction_distance === undefined;

/** The state of a finding's badge. */
export const stateOf = (finding: Finding): string =>
  isRecordOnly(finding) ? "not judged" : (STATES[finding.verdict] ?? "warning");

/** The word on it. */
export const verdictOf = (finding: Finding): string =>
  isRecordOnly(finding) ? "for the record" : finding.verdict.replaceAll("_", " ");

/** The state that decides: that of a step of which nothing was judged is no success. */
export function worstOf(findings: readonly Finding[]): string {
  const states = findings.map(stateOf);
  return ["failed", "warning", "ok"].find((state) => states.includes(state)) ?? (states.length ? "not judged" : "ok");
}

/** `no errors, latency p50 within the limit; not judged: latency p99`; what is worse comes first, in full. */
export function findingsInWords(findings: readonly Finding[]): string {
  const judged = findings.filter((each) => stateOf(each) !== "not judged");
  const bad = judged.filter(({ verdict }) => verdict !== "ok").map(({ what, text }) => `${findingName(what)}: ${text}`);
  const fine = judged
    .filter(({ verdict }) => verdict === "ok")
    .map(({ what, numbers }) =>
      [numbers.canary_errors, numbers.canary_client_errors].includes(0)
        ? `no ${findingName(what)}`
        : `${findingName(what)} within the limit`,
    );
  const open = findings.filter(({ verdict }) => verdict === "not_judged").map(({ what }) => findingName(what));
  const parts = [bad.join("; "), fine.join(", "), open.length ? `not judged: ${open.join(", ")}` : ""];
  return parts.filter(Boolean).join("; ");
}
