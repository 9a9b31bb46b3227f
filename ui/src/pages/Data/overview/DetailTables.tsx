import { Box, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { PlainTable } from "src/components";
import { formatNumber, formatPercent } from "src/format";
import { Swatch } from "src/pages/Data/overview/cells";
import { type Detail, type Side, valueAt, valueCount, valuesOf } from "src/pages/Data/overview/details";

type Format = (value: number) => string;
type Figure = [label: string, read: (detail: Detail) => number | null | undefined, format?: "value" | "share"];

const SHARES = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];
const FIRST_VALUES = 20;

const FIGURES: readonly Figure[] = [
  ["Rows", ({ rows }) => rows],
  ["Rows with a value", ({ count }) => count],
  ["Missing", ({ missing }) => missing],
  ["Missing share", ({ count, missing }) => (missing ?? 0) / ((count ?? 0) + (missing ?? 0) || 1), "share"],
  ["NaN", ({ nan }) => nan || null],
  ["Infinite", ({ infinite }) => infinite || null],
  ["Zeros", ({ zeros }) => zeros],
  ["Mean", ({ mean }) => mean, "value"],
  ["Standard deviation", ({ std }) => std],
  ["Distinct values", ({ unique }) => unique],
  ["Average length", ({ average_length: length }) => length],
  ["Not UTF-8", ({ not_utf8: count }) => count || null],
  ["Values per row, minimum", ({ values_per_row: each }) => (each && each[2] !== 1 ? each[0] : null)],
  ["Values per row, mean", ({ values_per_row: each }) => (each && each[2] !== 1 ? each[1] : null)],
  ["Values per row, maximum", ({ values_per_row: each }) => (each && each[2] !== 1 ? each[2] : null)],
  ["Non-uniformity", ({ non_uniformity: value }) => value],
];

/** The numbers of a feature, a column a data set. */
export function FiguresTable({ sides, formatValue }: { sides: readonly Side[]; formatValue: Format }) {
  const show = (value: number | null | undefined, kind: Figure[2]) => {
    if (value === null || value === undefined) {
      return "–";
    }
    return kind === "share" ? formatPercent(value) : kind === "value" ? formatValue(value) : formatNumber(value, 6);
  };
  const rows = FIGURES.map(([label, figure, kind]) => ({
    label,
    values: sides.map(({ detail }) => figure(detail)),
    kind,
  })).filter(({ values }) => values.some((value) => value !== null && value !== undefined));
  const custom = [...new Set(sides.flatMap(({ detail }) => Object.keys(detail.custom)))];
  return (
    <Sides
      title="Figures"
      sides={sides}
      rows={[
        ...rows.map(({ label, values, kind }) => ({ label, cells: values.map((value) => show(value, kind)) })),
        ...custom.map((label) => ({ label, cells: sides.map(({ detail }) => String(detail.custom[label] ?? "–")) })),
      ]}
    />
  );
}

/** Quantiles of a feature, a column a data set. */
export function QuantilesTable({ sides, formatValue }: { sides: readonly Side[]; formatValue: Format }) {
  const show = (value: number | null | undefined) =>
    value === null || value === undefined || Number.isNaN(value) ? "–" : formatValue(value);
  return (
    <Sides
      title="Quantiles"
      sides={sides}
      rows={[
        { label: "least", cells: sides.map(({ detail }) => show(detail.quantiles?.[0])) },
        ...SHARES.map((share) => ({
          label: share === 0.5 ? <b>median</b> : formatPercent(share),
          cells: sides.map(({ detail }) => show(detail.curve && valueAt(detail.curve, share))),
        })),
        { label: "greatest", cells: sides.map(({ detail }) => show(detail.quantiles?.at(-1))) },
      ]}
    />
  );
}

/** The most frequent values with rank, count and share in each data set. */
export function ValuesTable({ sides }: { sides: readonly Side[] }) {
  const [most, setMost] = useState(FIRST_VALUES);
  const values = valuesOf(sides);
  const others = sides.map(({ detail }) => detail.other_values ?? 0);
  const shareOf = (count: number, side: number) => {
    const total = sides[side] ? valueCount(sides[side].detail) : 0;
    return formatPercent(count / (total || 1));
  };
  const cell = (count: number | null, side: number) =>
    count === null ? "–" : `${formatNumber(count)} · ${shareOf(count, side)}`;
  return (
    <Box>
      <Sides
        title="Values"
        sides={sides}
        rows={[
          ...values.slice(0, most).map(({ value, counts }, rank) => ({
            label: (
              <Text maxWidth="240px" truncate title={value}>
                <Text as="span" color="fg.muted" mr={2}>
                  {rank + 1}
                </Text>
                {value === "" ? "(empty)" : value}
              </Text>
            ),
            cells: counts.map(cell),
          })),
          ...(others.some((count) => count >= 1) ? [{ label: "not listed", cells: others.map(cell) }] : []),
        ]}
      />
      {values.length > most && (
        <Text as="button" mt={2} fontSize="sm" color="fg.info" cursor="pointer" onClick={() => setMost(most * 5)}>
          {`Show more of ${values.length} values`}
        </Text>
      )}
    </Box>
  );
}

interface Row {
  label: ReactNode;
  /** A text for each data set. */
  cells: readonly string[];
}

function Sides({ title, sides, rows }: { title: string; sides: readonly Side[]; rows: readonly Row[] }) {
  return (
    <PlainTable
      label={title}
      width="auto"
      whiteSpace="nowrap"
      dense
      rows={rows.map((row, place) => ({ ...row, place }))}
      rowKey={({ place }) => place}
      columns={[
        { label: title, cell: ({ label }) => label },
        ...sides.map(({ dataset }, side) => ({
          label: (
            <>
              <Swatch index={dataset.index} /> {dataset.label}
            </>
          ),
          end: true,
          cell: ({ cells }: Row) => cells[side],
        })),
      ]}
    />
  );
}
