import { Box, HStack, List, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "src/api/client";
import { formatNumber, formatPercent } from "src/format";

/** Figures side by side, each below its name. */
export function Numbers({ of }: { of: readonly (readonly [string, ReactNode])[] }) {
  return (
    <HStack gap={8} wrap="wrap" align="flex-start">
      {of.map(([name, value]) => (
        <Box key={name}>
          <Text fontSize="xs" color="fg.muted" _firstLetter={{ textTransform: "uppercase" }}>
            {name}
          </Text>
          <Box fontSize="lg" fontWeight="semibold" fontVariantNumeric="tabular-nums">
            {value}
          </Box>
        </Box>
      ))}
    </HStack>
  );
}

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
    <Table.Root size="sm" maxW="4xl" aria-label="Rows">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Rows of</Table.ColumnHeader>
          <Table.ColumnHeader textAlign="end">In</Table.ColumnHeader>
          <Table.ColumnHeader textAlign="end">Out</Table.ColumnHeader>
          {isLossy && <Table.ColumnHeader>Rejected, with reasons</Table.ColumnHeader>}
        </Table.Row>
      </Table.Header>
      <Table.Body fontVariantNumeric="tabular-nums">
        {entries.map(([name, { rows_in, rows_out, rejected }]) => (
          <Table.Row key={name}>
            <Table.Cell py={1}>{name}</Table.Cell>
            <Table.Cell py={1} textAlign="end">
              {formatNumber(rows_in)}
            </Table.Cell>
            <Table.Cell py={1} textAlign="end">
              {formatNumber(rows_out)}
            </Table.Cell>
            {isLossy && (
              <Table.Cell py={1}>
                {Object.entries(rejected).map(([why, count]) => (
                  <Text key={why} fontSize="sm">
                    {formatNumber(count)} {why} ({formatPercent(count / rows_in)})
                  </Text>
                ))}
              </Table.Cell>
            )}
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  );
}
