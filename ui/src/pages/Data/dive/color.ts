/** The colour of each row: of the values of a category, or on a scale of even steps of lightness. */

import type { ChartTheme } from "src/components/chart/theme";
import { type Column, isDiscrete } from "src/pages/Data/dive/columns";
import { type Groups, groupBy } from "src/pages/Data/dive/groups";
import { makeAxis, type Tick } from "src/pages/Data/dive/scale";

/** Colours of rows. */
export interface Coloring {
  /** Index into `palette`, by row. */
  of: Uint8Array;
  palette: string[];
  /** What the colours stand for: groups, or a range with its marks; null where all rows have one colour. */
  groups: Groups | null;
  range: { column: Column; ticks: Tick[] } | null;
}

const STEPS = 64;
const MOST_GROUPS = 9;
const MISSING = "gray.500";

/** Colours rows by a feature; without one, all alike. */
export function colorBy(column: Column | null, size: number, theme: ChartTheme, zone: string): Coloring {
  if (column === null) {
    return { of: new Uint8Array(size), palette: [theme.series[0] ?? theme.text], groups: null, range: null };
  }
  if (isDiscrete(column, MOST_GROUPS)) {
    const groups = groupBy(column, MOST_GROUPS, zone);
    const palette = groups.labels.map((_, index) =>
      index === groups.missing
        ? theme.color(MISSING)
        : index === groups.other
          ? theme.color("fg.muted")
          : (theme.series[index] ?? theme.text),
    );
    return { of: Uint8Array.from(groups.of), palette, groups, range: null };
  }
  const axis = makeAxis({ ...column, nulls: 0 }, "linear", zone);
  const of = Uint8Array.from(axis.at, (at, row) =>
    Number.isNaN(column.values[row]) ? STEPS : Math.min(Math.floor(at * STEPS), STEPS - 1),
  );
  const palette = [...ramp(theme), theme.color(MISSING)];
  return { of, palette, groups: null, range: { column, ticks: axis.ticks(0, 1, 4) } };
}

/** All rows, those of a colour one after the other. */
export function orderByColor({ of }: Coloring): Uint32Array {
  const starts = new Uint32Array(257);
  for (const color of of) {
    starts[color + 1] = (starts[color + 1] as number) + 1;
  }
  for (let color = 0; color < 256; color++) {
    starts[color + 1] = (starts[color + 1] as number) + (starts[color] as number);
  }
  const order = new Uint32Array(of.length);
  for (let row = 0; row < of.length; row++) {
    const color = of[row] as number;
    order[starts[color] as number] = row;
    starts[color] = (starts[color] as number) + 1;
  }
  return order;
}

/** From little to much: away from the background's lightness, through the theme's hues. */
function ramp(theme: ChartTheme): string[] {
  const tokens =
    theme.mode === "dark"
      ? ["indigo.800", "purple.600", "pink.500", "orange.400", "yellow.200"]
      : ["amber.300", "orange.500", "pink.600", "purple.700", "indigo.950"];
  const stops = tokens.map((token) => toLab(theme.color(token)));
  return Array.from({ length: STEPS }, (_, step) => {
    const place = (step / (STEPS - 1)) * (stops.length - 1);
    const from = Math.min(Math.floor(place), stops.length - 2);
    const [low, high] = [stops[from] as Lab, stops[from + 1] as Lab];
    return toColor(low.map((part, index) => part + ((high[index] as number) - part) * (place - from)) as Lab);
  });
}

type Lab = [lightness: number, a: number, b: number];

/** OKLab (Ottosson, 2020), in which equal distances look equal. */
function toLab(color: string): Lab {
  const [red = 0, green = 0, blue = 0] = (color.match(/\d+(\.\d+)?/g) ?? []).map((part) => {
    const share = Number(part) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const long = Math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const medium = Math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const short = Math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return [
    0.2104542553 * long + 0.793617785 * medium - 0.0040720468 * short,
    1.9779984951 * long - 2.428592205 * medium + 0.4505937099 * short,
    0.0259040371 * long + 0.7827717662 * medium - 0.808675766 * short,
  ];
}

function toColor([lightness, a, b]: Lab): string {
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channels = [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ].map((share) => {
    const curved = share <= 0.0031308 ? 12.92 * share : 1.055 * share ** (1 / 2.4) - 0.055;
    return Math.round(Math.min(Math.max(curved, 0), 1) * 255);
  });
  return `rgb(${channels.join(",")})`;
}
