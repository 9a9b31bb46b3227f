/** The colours of a feature in a comparison: calm unless it has drifted. */

import { FAULTS } from "src/pages/Skew/words";

export const HEAT: readonly { token: string; label: string }[] = [
  { token: "gray.muted", label: "below ½ of the threshold" },
  { token: "blue.muted", label: "½ to 1" },
  { token: "orange.solid", label: "drifted" },
  { token: "red.solid", label: "drifted, looks like a fault" },
];

/** The step of a feature whose score is such a part of its threshold; null where it was not compared. */
export function heatIndex(ratio: number | null, drifted: boolean, cause: string | undefined): number | null {
  if (drifted) {
    return FAULTS.has(cause ?? "") ? 3 : 2;
  }
  return ratio === null ? null : ratio < 0.5 ? 0 : 1;
}

/** How the strips in a table look. */
export const STRIPS = {
  "& [data-strip]": { display: "block" },
  "& [data-strip] g": { cursor: "pointer" },
  "& rect[data-heat=none]": { fill: "transparent", stroke: "border" },
  ...Object.fromEntries(HEAT.map(({ token }, index) => [`& rect[data-heat="${index}"]`, { fill: token }])),
  "& [data-change]": {
    display: "-webkit-box",
    WebkitBoxOrient: "vertical",
    WebkitLineClamp: 2,
    whiteSpace: "normal",
    lineHeight: 1.3,
    fontSize: "xs",
    color: "fg.muted",
    overflow: "hidden",
  },
  "& [data-change=drifted]": { color: "fg" },
  "& rect[data-chosen]": { stroke: "fg", strokeWidth: 1.5 },
};
