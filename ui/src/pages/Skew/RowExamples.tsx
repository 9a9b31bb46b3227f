import { Box, Heading, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { PlainTable } from "src/components/PlainTable";
import { formatNumber } from "src/format";

const asText = (value: unknown): string =>
  value === null || value === undefined ? "none" : typeof value === "string" ? value : JSON.stringify(value);

const nameOf = ({ identifier }: Schemas["RowExample"]): string => Object.values(identifier).map(asText).join(", ");

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
        <PlainTable
          label="Rows that differ"
          mt={2}
          rows={examples}
          rowKey={nameOf}
          columns={[
            { label: "Row", cell: nameOf },
            { label: "Training", cell: ({ training }) => asText(training) },
            { label: "Served", cell: ({ serving }) => asText(serving) },
          ]}
        />
      )}
    </Box>
  );
}
