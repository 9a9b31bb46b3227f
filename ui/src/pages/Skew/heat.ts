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

/** The step of a ratio; null where there is none. */
export function heatIndex(ratio: number | null): number | null {
  return ratio === null ? null : HEAT.findLastIndex(({ from }) => ratio >= from);
}

/** How the strips in a table look. */
export const STRIPS = {
  "& [data-strip]": { display: "block" },
  "& [data-strip] g": { cursor: "pointer" },
  "& [data-strip] circle": { fill: "bg", pointerEvents: "none" },
  "& rect[data-heat=none]": { fill: "transparent", stroke: "border" },
  ...Object.fromEntries(HEAT.map(({ token }, index) => [`& rect[data-heat="${index}"]`, { fill: token }])),
  "& rect[data-chosen]": { stroke: "fg", strokeWidth: 1.5 },
};
