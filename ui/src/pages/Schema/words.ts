/** What schemas and anomalies are called in words. */

import type { Schemas } from "src/api/client";
import { formatCount, formatNumber, formatPercent, plural } from "src/format";
import { measureSymbol } from "src/measures";

type Feature = Schemas["SchemaFeature"];

const ASPECTS: Record<string, string> = {
  in_environment: "in environment",
  not_in_environment: "not in environment",
  drift_comparator: "drift",
  skew_comparator: "skew",
  unique_constraints: "distinct values",
  distribution_constraints: "distribution",
  lifecycle_stage: "stage",
  value_counts: "values per level",
  group_presence: "group presence",
};
const TYPES: Record<string, string> = { BYTES: "string", INT: "integer", FLOAT: "float", STRUCT: "struct" };

/** The name of an aspect of a feature, or of a field of `Feature`. */
export const aspectName = (aspect: string): string => ASPECTS[aspect] ?? aspect.replaceAll("_", " ");

/** A type of `FeatureType`. */
export const typeName = (type: string): string => TYPES[type] ?? type.toLowerCase();

/** Thresholds of a comparator: `0.05`, or with TFDV's measure where it is not the distance of all types. */
export const thresholds = (by: Record<string, number>): string =>
  Object.entries(by)
    .map(([measure, value]) => `${measureSymbol(measure)} ${formatNumber(value)}`.replace(/^distance /, ""))
    .join(", ");

/** In how many rows a feature has to be. */
export function presence(feature: Feature): string {
  if (feature.required) {
    return "required";
  }
  return feature.min_fraction > 0 ? `≥ ${formatPercent(feature.min_fraction, 4)}` : feature.presence || "optional";
}

/** The form of a feature's values in a row: `1`, `0 to 3`, `[2, 3]`. */
export const form = (feature: Feature): string =>
  feature.shape ? `[${feature.shape.join(", ")}]` : feature.values_per_row || "any";

/** The environments that a feature is not in, in words; empty where it is in all. */
export function elsewhere(feature: Feature, environments: readonly string[]): string {
  const all = environments.every((each) => feature.environments.includes(each));
  return all ? "" : feature.environments.length ? `${feature.environments.join(", ")} only` : "none";
}

/** Rows that have an anomaly: `114`, `≈ 114`. */
export const rowCount = (rows: number | null, exact: boolean): string =>
  rows === null ? "" : `${exact ? "" : "≈ "}${rows < 100_000 ? formatNumber(rows) : formatCount(rows)}`;

/** What a validation found, in one way everywhere: `1 anomalous feature, 7 drifted`. */
export const foundInWords = (anomalous: number, drifted: number | null | undefined): string =>
  (anomalous ? plural(anomalous, "anomalous feature") : "no anomalies") + (drifted ? `, ${drifted} drifted` : "");
