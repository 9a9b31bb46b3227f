import { Badge, Box } from "@chakra-ui/react";
import { useMemo } from "react";
import { LuBinary, LuBraces, LuClock, LuHash, LuType } from "react-icons/lu";
import { type Column, column, DataTable } from "src/components";
import { formatDuration, formatNumber } from "src/format";
import { measureSymbol } from "src/measures";
import { Apart, CELLS, inPlace, LINE, Lines, Share, SwatchInCell, Top } from "src/pages/Data/overview/cells";
import { Distribution } from "src/pages/Data/overview/Distribution";
import type { Shown } from "src/pages/Data/overview/datasets";
import {
  type FeatureRow,
  firstNumber,
  type Group,
  greatest,
  isConstant,
  missingShare,
  type Roles,
  read,
  zeroShare,
} from "src/pages/Data/overview/features";
import type { PlotStyle } from "src/pages/Data/overview/plot";

interface Props {
  rows: readonly FeatureRow[];
  shown: readonly Shown[];
  style: PlotStyle;
  group: Group;
  roles: Roles;
  formatTime: (seconds: number) => string;
  opened: string | null;
  onOpen: (row: FeatureRow) => void;
  toolbar: React.ReactNode;
}

/** Every feature in a row, every data set in a line of it. */
export function FeaturesTable({ rows, shown, style, group, roles, formatTime, opened, onOpen, toolbar }: Props) {
  const height = Math.max(shown.length, 2) * LINE + 10;
  const measures = [...new Set(rows.flatMap((row) => row.distances.map((each) => each?.measure ?? [])).flat())];
  const named = measures.length
    ? ` (${measures
        .map((each) => (each === "distance" ? "of rows" : measureSymbol(each)))
        .sort()
        .join(", ")})`
    : "";
  const columns = useMemo(
    () => columnsOf({ shown, style, group, roles, formatTime, height, narrow: opened !== null, named }),
    [shown, style, group, roles, formatTime, height, opened, named],
  );
  return (
    <Box css={CELLS}>
      <DataTable
        label="Features"
        rows={rows}
        rowKey={nameOf}
        columns={columns}
        rowHeight={height}
        maxHeight="calc(100vh - 310px)"
        onOpen={onOpen}
        opened={opened}
        toolbar={toolbar}
      />
    </Box>
  );
}

const nameOf = (row: FeatureRow) => row.name;

type Numbers = "mean" | "std" | "unique" | "average_length" | "count" | "nan" | "infinite";

type columnsOfProps = Pick<Props, "shown" | "style" | "group" | "roles" | "formatTime"> & {
  height: number;
  narrow: boolean;
  /** The measures of the distances. */
  named: string;
};

function columnsOf({
  shown,
  style,
  group,
  roles,
  formatTime,
  height,
  narrow,
  named,
}: columnsOfProps): Column<FeatureRow>[] {
  const labels = shown.map(({ label }) => label);
  const format = (row: FeatureRow, value: number | null | undefined) =>
    value === null || value === undefined ? null : row.name === roles.time ? formatTime(value) : formatNumber(value);
  const place = (row: FeatureRow, text: string | null) =>
    row.name === roles.time ? <span data-date>{inPlace(text)}</span> : inPlace(text);
  const number = (
    key: Numbers,
    label: string,
    more: Partial<Column<FeatureRow>> = {},
    show: typeof format = (_, value) => formatNumber(value),
  ): Column<FeatureRow> => ({
    key,
    label,
    align: "end",
    width: 88,
    descendingFirst: true,
    value: (row) => firstNumber(row, key),
    render: (row) => <Lines row={row} line={(dataset) => place(row, show(row, read(row, dataset, key)))} />,
    ...more,
  });
  const quantile = (index: number, label: string, optional = false): Column<FeatureRow> => ({
    key: QUANTILES[index] ?? String(index),
    label,
    align: "end",
    width: 92,
    optional,
    descendingFirst: true,
    value: (row) => greatest(row, (_, dataset) => (dataset === 0 ? read(row, 0, "quantiles")?.[index] : null)),
    render: (row) => <Lines row={row} line={(at) => place(row, format(row, read(row, at, "quantiles")?.[index]))} />,
  });
  const share = (
    key: string,
    label: string,
    measure: (row: FeatureRow, dataset: number) => number | null,
    alarming: number,
    more: Partial<Column<FeatureRow>> = {},
  ): Column<FeatureRow> => ({
    key,
    label,
    align: "end",
    width: 78,
    descendingFirst: true,
    value: (row) => greatest(row, measure),
    render: (row) => (
      <Lines row={row} line={(dataset) => <Share value={measure(row, dataset)} alarming={alarming} />} />
    ),
    ...more,
  });
  const words = group === "words";
  const numbers = group === "numbers";
  const columns: (Column<FeatureRow> | false)[] = [
    column("name", "Feature", {
      fixed: true,
      width: narrow ? 150 : 200,
      minWidth: 135,
      value: (row) => row.name,
      render: (row) => <Name row={row} roles={roles} />,
    }),
    column("distribution", "Distribution", {
      width: 204,
      render: (row) => <Distribution row={row} style={style} height={height - 8} labels={labels} />,
    }),
    shown.length > 1 &&
      column("data", "Data set", {
        quiet: true,
        width: 34,
        fixed: true,
        render: (row) => <Lines row={row} line={(dataset) => <SwatchInCell index={dataset} />} />,
      }),
    shown.length > 1 &&
      column("distance", `Distance${named}`, {
        align: "end",
        width: 152,
        help: `From ${labels[0]} to ${shown.length > 2 ? "each of the others, sorted by the largest distance" : labels[1]}, from 0 (the same distribution) to 1`,
        descendingFirst: true,
        value: (row) => greatest(row, (_, dataset) => row.distances[dataset]?.score),
        render: (row) => (
          <Lines row={row} always line={(dataset) => <Apart row={row} dataset={dataset} labels={labels} />} />
        ),
      }),
    number("count", "Count", { optional: !words, help: "Rows that have the feature" }),
    share("missing", "Missing", missingShare, 0.5, { help: "Share of the rows that are missing or NaN" }),
    share("zeros", "Zeros", zeroShare, 0.95, { optional: words, help: "Share of the values that are zero" }),
    number("mean", "Mean", { optional: words }, format),
    number("std", "Std. dev.", { optional: words }, (row, value) =>
      row.name === roles.time ? formatDuration(value) : formatNumber(value),
    ),
    quantile(0, "Min", words),
    quantile(1, "10%", !numbers),
    quantile(5, "Median", words),
    quantile(9, "90%", !numbers),
    quantile(10, "Max", words),
    number("unique", "Unique", { optional: numbers, width: 74 }),
    column("top", "Top value", {
      width: 136,
      optional: numbers,
      value: (row) =>
        read(
          row,
          row.at.findIndex((index) => index >= 0),
          "top_values",
        )?.[0]?.[0],
      render: (row) => <Lines row={row} line={(dataset) => <Top row={row} dataset={dataset} />} />,
    }),
    number("average_length", "Avg. length", {
      optional: !words,
      width: 104,
      help: "In characters; for binary values, in bytes",
    }),
    column("non_uniformity", "Non-uniformity", {
      align: "end",
      width: 128,
      optional: true,
      help: "0 if all buckets or values are equally frequent, 1 if there is only one: 1 − entropy / maximum entropy",
      descendingFirst: true,
      value: (row) => greatest(row, (_, dataset) => read(row, dataset, "non_uniformity")),
      render: (row) => <Lines row={row} line={(at) => inPlace(formatNumber(read(row, at, "non_uniformity"), 3))} />,
    }),
    number("nan", "NaN", { optional: true }),
    number("infinite", "Infinite", { optional: true }),
  ];
  const all = columns.filter((column) => column !== false);
  // Beside the panel of a feature there is room for what one chooses by.
  return narrow ? all.map((column) => (NARROW.has(column.key) ? column : { ...column, optional: true })) : all;
}

const QUANTILES = ["min", "p10", "p20", "p30", "p40", "median", "p60", "p70", "p80", "p90", "max"];
const NARROW = new Set(["name", "distribution", "data", "distance", "missing"]);

const ICONS = { num: LuHash, string: LuType, bytes: LuBinary, struct: LuBraces, none: LuBinary } as const;

/** A feature's name, its type, and what is special about it. */
function Name({ row, roles }: { row: FeatureRow; roles: Roles }) {
  const Kind = row.name === roles.time ? LuClock : ICONS[row.kind];
  return (
    <div style={{ lineHeight: `${LINE}px` }}>
      <div title={row.name} data-feature={row.name}>
        {row.name}
      </div>
      <div data-type>
        <Kind size={12} aria-hidden />
        {row.type.toLowerCase()}
        {row.name === roles.label && (
          <Badge size="xs" title={roles.labelWords}>
            label
          </Badge>
        )}
        {row.name === roles.weight && <Badge size="xs">weight</Badge>}
        {row.name === roles.time && <Badge size="xs">time</Badge>}
        {isConstant(row) && (
          <Badge size="xs" colorPalette="orange">
            constant
          </Badge>
        )}
        {row.at.includes(-1) && (
          <Badge size="xs" colorPalette="orange">
            not in all
          </Badge>
        )}
      </div>
    </div>
  );
}
