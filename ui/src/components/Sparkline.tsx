import { chakra } from "@chakra-ui/react";

const INSET = 1.5;

/**
 * A small line of a series; gaps where it has no value. Its scale starts at zero unless `min` says otherwise.
 *
 * @param label what it shows, for those who cannot see it and on hover
 * @param threshold a value to draw a dashed line at
 * @param fills whether it is as wide as its place; `width` and `height` are then its proportions
 */
export function Sparkline({
  values,
  label,
  width = 96,
  height = 24,
  min = 0,
  threshold,
  palette = "blue",
  fills = false,
}: {
  values: readonly (number | null)[];
  label: string;
  width?: number;
  height?: number;
  min?: number;
  threshold?: number | null;
  palette?: string;
  fills?: boolean;
}) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(min, ...known);
  const span = Math.max(threshold ?? low, ...known) - low || 1;
  const x = (index: number) => INSET + ((width - 2 * INSET) * index) / Math.max(values.length - 1, 1);
  const y = (value: number) => height - INSET - ((height - 2 * INSET) * (value - low)) / span;
  let pen = "M";
  const path = values
    .map((value, index) => {
      const point = value === null ? "" : `${pen}${x(index).toFixed(1)},${y(value).toFixed(1)}`;
      pen = value === null ? "M" : "L";
      return point;
    })
    .join("");
  const last = values.findLastIndex((value) => value !== null);
  const lastValue = values[last];
  return (
    <chakra.svg
      viewBox={`0 0 ${width} ${height}`}
      width={fills ? "100%" : `${width}px`}
      height={fills ? "auto" : `${height}px`}
      role="img"
      aria-label={label}
      display="inline-block"
      colorPalette={palette}
    >
      <title>{label}</title>
      {threshold !== null && threshold !== undefined && (
        <chakra.line
          x1={0}
          x2={width}
          y1={y(threshold)}
          y2={y(threshold)}
          stroke="border.emphasized"
          strokeDasharray="3 2"
        />
      )}
      <chakra.path d={path} fill="none" stroke="colorPalette.solid" strokeWidth={1.5} strokeLinejoin="round" />
      {lastValue !== undefined && lastValue !== null && (
        <chakra.circle cx={x(last)} cy={y(lastValue)} r={2} fill="colorPalette.solid" />
      )}
    </chakra.svg>
  );
}
