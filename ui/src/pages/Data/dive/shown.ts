/** What the plot shows, and what its labels see of it. */

import type { ChartTheme } from "src/components/chart/theme";
import type { Coloring } from "src/pages/Data/dive/color";
import type { Layout } from "src/pages/Data/dive/layout";
import type { Place } from "src/pages/Data/dive/picking";
import type { Projection } from "src/pages/Data/dive/raster";
import type { Axis } from "src/pages/Data/dive/scale";

/** Headings of facets: the feature, and what of it each facet holds. */
export interface Labels {
  name: string;
  of: readonly string[];
}

/** What the plot shows. */
export interface Shown {
  layout: Layout;
  coloring: Coloring;
  x: Axis | null;
  y: Axis | null;
  /** Headings of the facets; null where there are none. */
  columnLabels: Labels | null;
  rowLabels: Labels | null;
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

/** The plot as it is drawn now. */
export interface Plotted {
  readonly width: number;
  readonly height: number;
  readonly margins: Margins;
  readonly hovered: number | null;
  readonly outline: readonly Place[];
  placeOf(row: number): Place | null;
  projection(ratio: number): Projection;
}
