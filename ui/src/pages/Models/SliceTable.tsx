import { chakra, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { type Column, column, DataTable, FilterBar, numberColumn, SearchInput } from "src/components";
import { formatNumber, plural } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import { signed } from "src/pages/Models/FiguresTable";
import { numberOf, type Slice, type Split, toneOf } from "src/pages/Models/figures";
import { type Evaluated, nameOf } from "src/pages/Models/versions";
import { metricLabel } from "src/pages/Models/words";

interface Interval {
  low: number;
  high: number;
  middle: number;
}

interface SliceTableProps {
  feature: string;
  split: Split;
  version: Evaluated;
  champion: number | null;
  metric: string;
}

/** The metric in each slice: candidate beside champion, and the interval of what was gained, or of the metric itself. */
export function SliceTable({ feature, split, version, champion, metric }: SliceTableProps) {
  const [search] = useQueryParam("slice");
  const all = split.slices?.[feature] ?? [];
  const slices = all.filter(({ value }) => String(value).toLowerCase().includes(search.toLowerCase()));
  const columns = useMemo(
    () => columnsFor(feature, all, split, version, champion, metric),
    [feature, all, split, version, champion, metric],
  );
  return (
    <DataTable
      label={`Slices by ${feature}`}
      name="slice"
      rows={slices}
      rowKey={({ value }) => JSON.stringify(value)}
      initialSort={{ column: "rows", descending: true }}
      maxHeight="45vh"
      columns={columns}
      toolbar={
        all.length > 10 && (
          <FilterBar summary={plural(slices.length, "slice")}>
            <SearchInput name="slice" placeholder={`Search ${feature}`} />
          </FilterBar>
        )
      }
    />
  );
}

function columnsFor(
  feature: string,
  slices: readonly Slice[],
  split: Split,
  version: Evaluated,
  champion: number | null,
  metric: string,
): Column<Slice>[] {
  const interval = champion === null ? ownInterval(metric) : gainInterval;
  // Slices of a few rows have intervals that would leave the others no room: they are cut off at the edges.
  const intervals = slices
    .filter(({ rows }) => rows >= SMALL * split.rows)
    .map(interval)
    .filter((each) => each !== null);
  const overall = champion === null ? numberOf(split.candidate, metric) : 0;
  const lowest = Math.min(overall ?? 0, ...intervals.map(({ low }) => low));
  const highest = Math.max(overall ?? 0, ...intervals.map(({ high }) => high));
  const label = metricLabel(metric);
  return [
    column("value", feature, {
      fixed: true,
      width: 130,
      value: ({ value }) => String(value),
      render: ({ value }) => <span title={String(value)}>{String(value)}</span>,
    }),
    numberColumn("rows", "Rows", ({ rows }) => rows, { width: 80 }),
    numberColumn("candidate", `${label} ${nameOf(version)}`, (slice) => numberOf(slice.candidate, metric), {
      width: 110,
    }),
    ...(champion === null
      ? []
      : [
          numberColumn("champion", `${label} v${champion}`, (slice: Slice) => numberOf(slice.champion, metric), {
            width: 110,
          }),
          numberColumn("gain", "Gain", (slice: Slice) => slice.gain?.difference, {
            width: 90,
            help: "Difference between candidate and champion on the same rows; positive is better",
            render: ({ gain }) => (
              <Text as="span" color={toneOf(Math.sign(gain?.difference ?? 0))}>
                {signed(gain?.difference ?? null)}
              </Text>
            ),
          }),
        ]),
    column("interval", champion === null ? `95% interval of ${label}` : "95% interval of the gain", {
      width: 220,
      render: (slice) => (
        <Whisker
          interval={interval(slice)}
          lowest={lowest}
          highest={highest}
          reference={overall}
          format={champion === null ? formatNumber : signed}
          better={champion === null ? 0 : Math.sign(slice.gain?.difference ?? 0)}
        />
      ),
    }),
  ];
}

function gainInterval({ gain }: Slice): Interval | null {
  return gain?.low == null || gain.high === null || gain.difference === null
    ? null
    : { low: gain.low, high: gain.high, middle: gain.difference };
}

function ownInterval(metric: string): (slice: Slice) => Interval | null {
  return ({ candidate }) => {
    const low = numberOf(candidate, `${metric}_low`);
    const high = numberOf(candidate, `${metric}_high`);
    const middle = numberOf(candidate, metric);
    return low === null || high === null || middle === null ? null : { low, high, middle };
  };
}

const SMALL = 0.01;
const WIDTH = 200;
const HEIGHT = 20;
const INSET = 4;

interface WhiskerProps {
  interval: Interval | null;
  lowest: number;
  highest: number;
  reference: number | null;
  better: number;
  format: (value: number) => string;
}

/** An interval on the scale that all slices share, and a line at what it is to be compared with. */
function Whisker({ interval, lowest, highest, reference, better, format }: WhiskerProps) {
  if (interval === null) {
    return <Text color="fg.muted">too few rows</Text>;
  }
  const x = (value: number) => {
    const share = (value - lowest) / Math.max(highest - lowest, Number.EPSILON);
    return INSET + (WIDTH - 2 * INSET) * Math.min(1, Math.max(0, share));
  };
  const words = `${format(interval.low)} to ${format(interval.high)}`;
  const beyondChance = reference !== null && (interval.low > reference || interval.high < reference);
  const palette = !beyondChance || better === 0 ? "gray" : better > 0 ? "green" : "red";
  return (
    <chakra.svg width={`${WIDTH}px`} height={`${HEIGHT}px`} role="img" aria-label={words} colorPalette={palette}>
      <title>{words}</title>
      {reference !== null && (
        <chakra.line x1={x(reference)} x2={x(reference)} y1={0} y2={HEIGHT} stroke="border.emphasized" />
      )}
      <chakra.line
        x1={x(interval.low)}
        x2={x(interval.high)}
        y1={HEIGHT / 2}
        y2={HEIGHT / 2}
        stroke="colorPalette.solid"
        strokeWidth={2}
      />
      <chakra.circle cx={x(interval.middle)} cy={HEIGHT / 2} r={3.5} fill="colorPalette.solid" />
    </chakra.svg>
  );
}
