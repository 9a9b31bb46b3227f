import { datasetPalette } from "src/pages/Data/overview/datasets";
import { type FeatureRow, read } from "src/pages/Data/overview/features";
import type { PlotStyle } from "src/pages/Data/overview/plot";

const SHARES = 10_000;
const WIDTH = 180;
const VALUES = 8;

interface Shown {
  row: FeatureRow;
  style: PlotStyle;
  height: number;
  /** Of the data sets. */
  labels: readonly string[];
}

/** A feature's distribution in a table cell: plain SVG, each data set in its colour. */
export function Distribution({ row, style, height, labels }: Shown) {
  const label = `Distribution of ${row.name}`;
  if (row.kind === "num") {
    return style.chart === "quantiles" ? (
      <Quantiles row={row} height={height} label={label} />
    ) : (
      <Histogram row={row} style={style} height={height} label={label} />
    );
  }
  return row.kind === "string" ? <Ranks row={row} style={style} height={height} labels={labels} /> : null;
}

const scaled = (value: number, log: boolean) => (log ? Math.log10(1 + value) : value);

interface Props {
  row: FeatureRow;
  style: PlotStyle;
  height: number;
  label: string;
}

function Histogram({ row, style, height, label }: Props) {
  const series = row.at.map((_, dataset) => {
    const [low, high, shares] = read(row, dataset, "histogram") ?? [null, null, []];
    const all = style.counts ? (read(row, dataset, "count") ?? 0) : SHARES;
    return { low: low ?? 0, high: high ?? 0, counts: shares.map((share) => (share * all) / SHARES) };
  });
  const drawn = series.filter(({ counts }) => counts.length);
  const low = Math.min(...drawn.map((each) => each.low));
  const high = Math.max(...drawn.map((each) => each.high));
  const span = high - low || 1;
  // Buckets of different widths compare by density: as if all were as wide as the widest.
  const widths = series.map((each) => (each.high - each.low) / each.counts.length || span);
  const widest = Math.max(...widths.filter((_, dataset) => series[dataset]?.counts.length));
  const heights = series.map(({ counts }, dataset) =>
    counts.map((count) => scaled((count * widest) / (widths[dataset] ?? 1), style.log)),
  );
  const top = Math.max(...heights.flat(), Number.MIN_VALUE);
  const x = (value: number) => (high > low ? (WIDTH * (value - low)) / span : WIDTH * (0.45 + 0.1 * value));
  return (
    <Plot height={height} label={label}>
      {series.map((each, dataset) => {
        const width = (each.high - each.low) / each.counts.length;
        const ends = (index: number): [number, number] =>
          high > low && width > 0
            ? [x(each.low + index * width), x(each.low + (index + 1) * width)]
            : high > low
              ? [x(each.low) - 1, x(each.low) + 1]
              : [x(0), x(1)];
        const steps = each.counts.map((_, index) => {
          const [left, right] = ends(index);
          const y = height - 1 - (heights[dataset]?.[index] ?? 0) * ((height - 3) / top);
          return `${left.toFixed(1)},${y.toFixed(1)}H${right.toFixed(1)}`;
        });
        if (!steps.length) {
          return null;
        }
        const [first, last] = [ends(0)[0], ends(steps.length - 1)[1]];
        const outline = `M${first.toFixed(1)},${height - 1}L${steps.join("L")}L${last.toFixed(1)},${height - 1}`;
        return (
          <Ink key={datasetPalette(dataset)} dataset={dataset}>
            <path
              d={outline}
              fill="currentColor"
              fillOpacity={drawn.length > 1 ? 0.1 : 0.5}
              stroke="currentColor"
              strokeWidth={1.25}
              strokeLinejoin="round"
            />
          </Ink>
        );
      })}
    </Plot>
  );
}

/** A lane a data set: from the least to the greatest value, the middle 80% thick, each decile a tick, the median long. */
function Quantiles({ row, height, label }: { row: FeatureRow; height: number; label: string }) {
  const lanes = row.at.map((_, dataset) => read(row, dataset, "quantiles") ?? []);
  const all = lanes.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value: number | null | undefined) =>
    high > low ? 2 + ((WIDTH - 4) * ((value ?? low) - low)) / (high - low) : WIDTH / 2;
  const lane = height / lanes.length;
  return (
    <Plot height={height} label={`Quantiles: ${label}`}>
      {lanes.map((values, dataset) => {
        const y = lane * (dataset + 0.5);
        const reach = Math.min(lane / 2 - 2, 9);
        const tick = (value: number | null) => `M${x(value)},${y - reach * 0.6}v${reach * 1.2}`;
        return (
          values.length > 0 && (
            <Ink key={datasetPalette(dataset)} dataset={dataset}>
              <rect
                x={x(values[1])}
                y={y - reach * 0.7}
                width={Math.max(x(values.at(-2)) - x(values[1]), 0)}
                height={reach * 1.4}
                fill="currentColor"
                fillOpacity={0.25}
              />
              <path d={`M${x(values[0])},${y}H${x(values.at(-1))}${values.map(tick).join("")}`} stroke="currentColor" />
              <path d={`M${x(values[5])},${y - reach}v${2 * reach}`} stroke="currentColor" strokeWidth={2.5} />
            </Ink>
          )
        );
      })}
    </Plot>
  );
}

/**
 * The most frequent values, by the first data set that has the feature; a bar for each data set.
 *
 * Of a value that is not among a data set's own most frequent ones only the most that it can have is known: an outline.
 */
function Ranks({ row, style, height, labels }: Shown) {
  const counts = row.at.map((_, dataset) => countsOf(row, dataset));
  const values = [...new Set(counts.flatMap(({ known }) => [...known.keys()]))].slice(0, VALUES);
  const total = (dataset: number) => read(row, dataset, "count") ?? 0;
  const heightOf = (value: string, dataset: number) => {
    const count = counts[dataset]?.known.get(value) ?? counts[dataset]?.most ?? 0;
    return scaled(style.counts ? count : (count / (total(dataset) || 1)) * SHARES, style.log);
  };
  const top = Math.max(...values.flatMap((value) => row.at.map((_, at) => heightOf(value, at))), Number.MIN_VALUE);
  const slot = WIDTH / Math.max(values.length, 1);
  const bar = Math.min((slot - 3) / row.at.length, 18);
  const bars = (value: string, place: number, dataset: number) => {
    const tall = heightOf(value, dataset) * ((height - 3) / top);
    const wide = Math.max(bar - 1, 1);
    return `M${place * slot + dataset * bar},${height - 1}v${-tall}h${wide}v${tall}z`;
  };
  const isKnown = (value: string, dataset: number) => !counts[dataset]?.most || counts[dataset].known.has(value);
  const path = (dataset: number, known: boolean) =>
    values.map((value, place) => (isKnown(value, dataset) === known ? bars(value, place, dataset) : "")).join("");
  const said = values.map((value) => {
    const shares = labels.map((label, dataset) => {
      const count = counts[dataset]?.known.get(value) ?? counts[dataset]?.most ?? 0;
      const share = (100 * count) / (total(dataset) || 1);
      return `${label} ${isKnown(value, dataset) ? "" : "at most "}${share.toPrecision(3)}%`;
    });
    return `${value}: ${shares.join(", ")}`;
  });
  return (
    <Plot height={height} label={`Most frequent values of ${row.name}: ${said.join("; ")}`}>
      {row.at.map((_, dataset) => (
        <Ink key={datasetPalette(dataset)} dataset={dataset}>
          <path fill="currentColor" fillOpacity={0.75} d={path(dataset, true)} />
          <path fill="none" stroke="currentColor" strokeDasharray="2 2" d={path(dataset, false)} />
        </Ink>
      ))}
    </Plot>
  );
}

/** The counts of a data set's most frequent values, and the most that any other can have; 0 where there is no other. */
export function countsOf(row: FeatureRow, dataset: number): { known: ReadonlyMap<string, number>; most: number } {
  const top = read(row, dataset, "top_values") ?? [];
  const known = new Map(top);
  const others = (read(row, dataset, "count") ?? 0) - top.reduce((sum, [, count]) => sum + count, 0);
  const least = Math.min(...top.map(([, count]) => count));
  return { known, most: top.length > 0 ? Math.min(least, Math.max(others, 0)) : 0 };
}

/** In the colour of a data set, which its children have as their `currentColor`. */
function Ink({ dataset, children }: { dataset: number; children: React.ReactNode }) {
  return <g data-ink={dataset}>{children}</g>;
}

function Plot({ height, label, children }: { height: number; label: string; children: React.ReactNode }) {
  return (
    <svg width={WIDTH} height={height} role="img" aria-label={label} style={BLOCK}>
      <title>{label}</title>
      {children}
      <line data-base x1={0} x2={WIDTH} y1={height - 0.5} y2={height - 0.5} />
    </svg>
  );
}

const BLOCK = { display: "block" };
