import { useMemo } from "react";
import { type ChartTheme, useChartTheme } from "src/components/chart/theme";
import { useTimezone } from "src/host";
import { type Coloring, colorBy, orderByColor } from "src/pages/Data/dive/color";
import type { Column } from "src/pages/Data/dive/columns";
import { passing } from "src/pages/Data/dive/filters";
import { type Groups, groupBy } from "src/pages/Data/dive/groups";
import { type Layout, layOut } from "src/pages/Data/dive/layout";
import { within } from "src/pages/Data/dive/picking";
import { type Axis, makeAxis, type ScaleKind } from "src/pages/Data/dive/scale";
import { featuresOf, type Placement, parseSelection } from "src/pages/Data/dive/settings";

/** Stacks along a range of numbers, where the other axis has no feature. */
const STACKS = 48;

/** Rows with their places and colours. */
export interface Placed {
  layout: Layout;
  coloring: Coloring;
  x: Axis | null;
  y: Axis | null;
  columns: Groups | null;
  rows: Groups | null;
  /** 1 for each row that passes the filters. */
  shown: Uint8Array;
  shownCount: number;
}

type Columns = ReadonlyMap<string, Column>;

/** Places and colours rows; what is packed is placed anew where the plot's proportions (width by height) change. */
export function usePlaced(placement: Placement, all: Columns, size: number, aspect: number): Placed {
  const zone = useTimezone();
  const theme = useChartTheme();
  const key = JSON.stringify([placement, featuresOf(placement).map((name) => all.has(name))]);
  const proportions = placement.x && placement.y ? 1 : aspect;
  // biome-ignore lint/correctness/useExhaustiveDependencies: placements that say the same are the same; so are columns
  return useMemo(() => place(placement, all, size, proportions, theme, zone), [key, size, proportions, theme, zone]);
}

/** 1 for each row that a selection of the address means; null where there is none, or its features have not come. */
export function useSelected(text: string, all: Columns, size: number): Uint8Array | null {
  const zone = useTimezone();
  const theme = useChartTheme();
  return useMemo(() => {
    const selection = parseSelection(text);
    if (!selection || size === 0) {
      return null;
    }
    const { layout } = place(selection.placement, all, size, selection.aspect, theme, zone);
    return within(layout, selection.outline);
  }, [text, all, size, theme, zone]);
}

function place(
  placement: Placement,
  all: Columns,
  size: number,
  aspect: number,
  theme: ChartTheme,
  zone: string,
): Placed {
  const axis = (name: string, scale: ScaleKind) => {
    const column = all.get(name);
    return column ? makeAxis(column, scale, zone) : null;
  };
  const groups = (name: string, bins: number) => {
    const column = all.get(name);
    return column ? groupBy(column, bins, zone) : null;
  };
  const placing = {
    x: axis(placement.x, placement.xScale),
    y: axis(placement.y, placement.yScale),
    columns: groups(placement.columns, placement.columnBins),
    rows: groups(placement.rows, placement.rowBins),
    shown: passing(size, all, placement.filters),
  };
  const coloring = colorBy(all.get(placement.color) ?? null, size, theme, zone);
  const order = orderByColor(coloring);
  const layout = layOut({ ...placing, jitter: placement.jitter, bins: STACKS, order, aspect });
  const shownCount = placing.shown.reduce((sum, each) => sum + each, 0);
  return { ...placing, layout, coloring, shownCount };
}
