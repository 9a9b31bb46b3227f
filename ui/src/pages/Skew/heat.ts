/** The colours of a score by its threshold: calm below it, loud beyond. */

interface HeatStep {
  /** Ratios from here on. */
  from: number;
  token: string;
  label: string;
}

export const HEAT: readonly HeatStep[] = [
  { from: 0, token: "gray.muted", label: "below ½ of the threshold" },
  { from: 0.5, token: "blue.muted", label: "½ to 1" },
  { from: 1, token: "orange.solid", label: "1 to 2" },
  { from: 2, token: "red.solid", label: "above 2" },
];

/** The colour token of a ratio; null where there is none. */
export function heatToken(ratio: number | null): string | null {
  return ratio === null ? null : (HEAT.findLast(({ from }) => ratio >= from)?.token ?? null);
}
