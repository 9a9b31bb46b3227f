import { List, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { PlainTable } from "src/components";
import { formatNumber, formatPercent } from "src/format";

/** Why something was decided, a line each. */
export function Reasons({ of }: { of: readonly string[] }) {
  return (
    <List.Root fontSize="sm" ps={4} gap={0.5}>
      {of.map((reason) => (
        <List.Item
          key={reason}
          wordBreak="break-word"
          fontWeight={reason.startsWith("warning: ") ? "semibold" : undefined}
        >
          {reason}
        </List.Item>
      ))}
    </List.Root>
  );
}

/** Rows in, out and rejected, by table or split. */
export function RowsTable({ rows }: { rows: Schemas["ArtifactEntry"]["rows"] }) {
  const entries = Object.entries(rows);
  if (entries.length === 0) {
    return null;
  }
  const isLossy = entries.some(([, { rejected }]) => Object.keys(rejected).length > 0);
  return (
    <PlainTable
      label="Rows"
      maxW="4xl"
      dense
      rows={entries}
      rowKey={([name]) => name}
      columns={[
        { label: "Rows of", cell: ([name]) => name },
        { label: "In", end: true, cell: ([, { rows_in }]) => formatNumber(rows_in) },
        { label: "Out", end: true, cell: ([, { rows_out }]) => formatNumber(rows_out) },
        ...(isLossy ? [{ label: "Rejected, with reasons", cell: Rejected }] : []),
      ]}
    />
  );
}

type Entry = [name: string, rows: Schemas["RowCounts"]];

const Rejected = ([, { rows_in, rejected }]: Entry) =>
  Object.entries(rejected).map(([why, count]) => (
    <Text key={why} fontSize="sm">
      {formatNumber(count)} {why} ({formatPercent(count / rows_in)})
    </Text>
  ));
