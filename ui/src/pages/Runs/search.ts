/** Examples of the search's syntax. The API reads it, and says what is wrong with it. */

import type { Names } from "src/pages/Runs/figures";

/** A name as the syntax takes it: in backticks where it has other characters than letters, digits, `_` and dots. */
function quoted(entity: "metrics" | "params", name: string): string {
  return /^[A-Za-z_]\w*(\.\w+)*$/.test(name) ? `${entity}.${name}` : `${entity}.\`${name}\``;
}

/** Filters to begin with, made of names that are there. */
export function examplesOf(names: Pick<Names, "metrics" | "params" | "varying">): string[] {
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
