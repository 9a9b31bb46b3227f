import { Box, Heading, Table, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { formatNumber } from "src/format";

const asText = (value: unknown): string =>
  value === null || value === undefined ? "none" : typeof value === "string" ? value : JSON.stringify(value);

/** How a feature differs between the served rows and the training rows of the same identifiers, with examples. */
export function RowExamples({ rows, examples }: { rows: Schemas["RowFeature"]; examples: Schemas["RowExample"][] }) {
  const pairs = rows.differ + rows.match;
  return (
    <Box>
      <Heading as="h3" size="sm" mb={1}>
        Row by row
      </Heading>
      <Text fontSize="sm" color="fg.muted">
        {rows.differ === 0
          ? `All ${formatNumber(pairs)} joined rows have the same value as the training data.`
          : `${formatNumber(rows.differ)} of ${formatNumber(pairs)} joined rows differ: ${formatNumber(rows.mismatch)} have another value, ${formatNumber(rows.training_only)} have a value only in training, ${formatNumber(rows.serving_only)} only when served.`}
      </Text>
      {examples.length > 0 && (
        <Table.Root size="sm" mt={2} aria-label="Rows that differ">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Row</Table.ColumnHeader>
              <Table.ColumnHeader>Training</Table.ColumnHeader>
              <Table.ColumnHeader>Served</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {examples.map((example) => {
              const row = Object.values(example.identifier).map(asText).join(", ");
              return (
                <Table.Row key={row}>
                  <Table.Cell>{row}</Table.Cell>
                  <Table.Cell>{asText(example.training)}</Table.Cell>
                  <Table.Cell>{asText(example.serving)}</Table.Cell>
                </Table.Row>
              );
            })}
          </Table.Body>
        </Table.Root>
      )}
    </Box>
  );
}
