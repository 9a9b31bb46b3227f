/** Columns for unit tests. */

import type { Column } from "src/pages/Data/dive/columns";

/** A column of numbers (NaN where one is missing), of times, or of words (null where one is missing). */
export function columnOf(values: readonly (number | string | null)[], role: Column["role"] = "number"): Column {
  const words = [...new Set(values.filter((value) => typeof value === "string"))];
  const numbers = values.map((value) => (typeof value === "number" ? value : words.indexOf(value as string)));
  const nulls = values.filter((value) => value === null || Number.isNaN(value)).length;
  return role === "category"
    ? { name: "feature", role, values: Int32Array.from(numbers), words, nulls }
    : { name: "feature", role, values: Float64Array.from(numbers), words: [], nulls };
}
