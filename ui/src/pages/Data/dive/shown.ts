/** What the plot shows, and where its marks are. */

import type { ChartTheme } from "src/components/chart/theme";
import type { Placed } from "src/pages/Data/dive/placed";

/** What the plot shows. */
export interface Shown extends Placed {
  /** Rows that stand out; null where all are alike. */
  chosen: Uint8Array | null;
  opened: number | null;
  theme: ChartTheme;
}

/** Space around the plot, in pixels of CSS. */
export interface Margins {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** Marks of a facet's axis, in pixels of CSS from the plot's corner. */
export interface Marks {
  from: number;
  to: number;
  ticks: { at: number; label: string }[];
}
