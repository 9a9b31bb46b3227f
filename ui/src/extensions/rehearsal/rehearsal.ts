/** What the report of a rehearsal says in words: what is found, when, and what slips through. */

import { formatList, formatNumber, formatPercent, metricLabel, plural, type Schemas } from "airflow-hops";

export type Report = Schemas["Rehearsal"];
export type Fault = Schemas["RehearsedFault"];
export type Feature = Schemas["RehearsedFeature"];

/** A share, and the ends of its interval; the API's types know no tuples. */
type Interval = readonly (number | null)[];

/** The share of the tries in which a change must be found. */
export const FOUND = 0.8;

/** What is wrong with a feature's comparison: what its badge looks like, and a sentence. */
export const DOUBTS: Record<string, { look: string; words: string }> = {
  blind: { look: "broken", words: "None of the faults planted in it is found, at any size." },
  weak: { look: "warning", words: "A change that moves predictions much is not found." },
  loud: { look: "warning", words: "It is called drifted in too many unchanged windows." },
  drifting: {
    look: "drift",
    words: "It has drifted in most of the unchanged windows: faults cannot be told from that.",
  },
};

/** What a fault changes: a feature, two, the labels, or whole rows. */
export const subjectOf = ({ feature, fault }: Fault): string => feature || (fault === "labels" ? fault : "whole rows");

export const kindOf = ({ fault }: Fault): string => (fault === "labels" ? "changed" : fault.replaceAll("_", " "));

/** Names a fault in the address. */
export const keyOf = ({ feature, fault }: Fault): string => `${feature}/${fault}`;

const UNITS = Object.entries({ day: 86_400, hour: 3_600, minute: 60 });

/** A span in words: `2 days`, `1.5 hours`. */
export function spanInWords(seconds: number): string {
  const [name, size] = UNITS.find(([, each]) => seconds >= each) ?? ["second", 1];
  return plural(Math.round((seconds / size) * 10) / 10, name);
}

/** When the monitor says so: `2 days`. */
export const afterInWords = ({ after }: Fault, { every_s, windows }: Report): string =>
  after === null ? `not within ${spanInWords(every_s * windows.length)}` : spanInWords(after * every_s);

/** A size in its unit: `0.4 sd`, `×1.8`, `12%`. */
export function sizeInWords(size: number, unit: string): string {
  const number = formatNumber(size, 3);
  return unit === "share" ? formatPercent(size) : unit === "factor" ? `×${number}` : `${number} ${unit}`;
}

/** The interval of the smallest size: `0.3 sd to 0.5 sd`; empty if neither end is known. */
export function rangeInWords({ interval, unit }: Fault): string {
  const [low = null, high = null] = interval as Interval;
  const words = (size: number) => sizeInWords(size, unit);
  if (low !== null && high !== null) {
    return `${words(low)} to ${words(high)}`;
  }
  return low !== null ? `${words(low)} or more` : high !== null ? `up to ${words(high)}` : "";
}

/** A change of predictions: of probabilities in points, of a number in its unit. */
const moveInWords = (effect: number, problem: string): string => {
  const [number, unit] = [formatNumber(problem === "regression" ? effect : effect * 100, 2), "point"];
  return problem === "regression" ? number : `${number} ${number === "1" ? unit : `${unit}s`}`;
};

/** What is not found at any size may do more than what was tried. */
const boundOf = (size: number | null): string => (size === null ? "≥" : "≤");

/** What stays unnoticed does to predictions: `moves predictions by ≤ 2.1 points`. */
export function effectInWords({ effect, size, fault }: Fault, { problem }: Report): string {
  if (effect === null) {
    return fault === "labels" ? "makes predictions wrong" : "has an unknown effect";
  }
  return `moves predictions by ${boundOf(size)} ${moveInWords(effect, problem)}`;
}

/** What stays unnoticed costs of the metric; empty if it is not known. */
export function lossInWords({ loss, size }: Fault, { metric }: Report): string {
  if (loss === null) {
    return "";
  }
  return `${metricLabel(metric)} ${loss < 0 ? `worse by ${boundOf(size)} ${formatNumber(-loss, 2)}` : "no worse"}`;
}

/** What slips through of a fault: anything, if it is never found and its effect is not known. */
export const slipping = ({ effect, size }: Fault): number => effect ?? (size === null ? Number.MAX_VALUE : -1);

/** The faults by what slips through, the most first; of equals those that are not found. */
export const byEffect = (faults: readonly Fault[]): Fault[] =>
  faults.toSorted(
    (one, other) => slipping(other) - slipping(one) || Number(other.size === null) - Number(one.size === null),
  );

/** What would not be noticed, in two sentences: of the faults that are not found, and of the others. */
export function slipsInWords(report: Report): { missed: string; found: string } {
  const ordered = byEffect(report.faults);
  const missed = ordered.filter(({ size }) => size === null);
  const found = ordered.filter(({ size }) => size !== null);
  const [worst, most] = [missed.find(({ effect }) => effect !== null) ?? missed[0], found[0]];
  const moves = (fault: Fault) => `${effectInWords(fault, report)}${fault.effect === null ? "" : " on average"}`;
  const latest = Math.max(...found.map(({ after }) => after ?? report.windows.length));
  return {
    missed:
      worst === undefined
        ? ""
        : `${missed.length} of ${plural(ordered.length, "fault")} at any size that was tried, ` +
          `in ${formatList([...new Set(missed.map(subjectOf))])}. ` +
          `The worst ${moves(worst)} (${subjectOf(worst)}: ${worst.words}).`,
    found:
      most === undefined
        ? ""
        : `Of the ${missed.length > 0 ? "other " : ""}${plural(found.length, "fault")}, what is too small to be noticed ` +
          `${moves(most)} (${subjectOf(most)}: ${most.words}); what is larger is called within ` +
          `${spanInWords(latest * report.every_s)}.`,
  };
}

/** The share of the unchanged windows in which what a fault changes is called drifted. */
export const alarmsOf = (fault: Fault, { features, false_alarms }: Report): Interval =>
  (features.find(({ name }) => name === fault.feature)?.false_alarms ?? false_alarms) as Interval;

/** `3.3% (0.6% to 17%)`. */
export const shareInWords = (interval: Interval): string => {
  const [value, low, high] = interval.map((each) => formatPercent(each, 2));
  return `${value} (${low} to ${high})`;
};
