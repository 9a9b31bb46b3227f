import { Box, Table, Text } from "@chakra-ui/react";
import { formatNumber, formatPercent } from "airflow-hops";
import type { FeatureFigures, Features } from "src/extensions/sharing/features";

const FIGURES: readonly { label: string; of: (figures: FeatureFigures) => string; end?: boolean }[] = [
  { label: "Type", of: ({ type }) => type },
  { label: "Missing", of: ({ missing }) => formatPercent(missing), end: true },
  { label: "Mean", of: ({ mean }) => (mean === null ? "" : formatNumber(mean)), end: true },
  { label: "Minimum", of: ({ min }) => (min === null ? "" : formatNumber(min)), end: true },
  { label: "Maximum", of: ({ max }) => (max === null ? "" : formatNumber(max)), end: true },
  { label: "Distinct", of: ({ unique }) => (unique === null ? "" : formatNumber(unique)), end: true },
  { label: "Most frequent", of: ({ top }) => top },
];

/** The features of a data set, and below each the same of ours, where there is one. */
export function ComparedFeatures({ theirs, ours, label }: { theirs: Features; ours: Features; label: string }) {
  return (
    <Box overflowX="auto">
      <Table.Root size="sm" aria-label="Features">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Feature</Table.ColumnHeader>
            {FIGURES.map((each) => (
              <Table.ColumnHeader key={each.label} textAlign={each.end ? "end" : "start"}>
                {each.label}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {[...theirs].flatMap(([name, figures]) => {
            const other = ours.get(name);
            return [
              <Row key={name} name={name} figures={figures} />,
              ...(other ? [<Row key={`${name} of ours`} name={label} figures={other} isOurs />] : []),
            ];
          })}
        </Table.Body>
      </Table.Root>
    </Box>
  );
}

function Row({ name, figures, isOurs = false }: { name: string; figures: FeatureFigures; isOurs?: boolean }) {
  return (
    <Table.Row bg={isOurs ? "bg.subtle" : undefined}>
      <Table.Cell ps={isOurs ? 6 : undefined}>
        <Text as="span" color={isOurs ? "fg.muted" : undefined} fontWeight={isOurs ? undefined : "medium"}>
          {name}
        </Text>
      </Table.Cell>
      {FIGURES.map((each) => (
        <Table.Cell key={each.label} textAlign={each.end ? "end" : "start"} whiteSpace="nowrap">
          {each.of(figures)}
        </Table.Cell>
      ))}
    </Table.Row>
  );
}
