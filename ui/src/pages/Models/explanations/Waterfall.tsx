import { Box, Stack, Table, Text } from "@chakra-ui/react";
import { Choice } from "src/components/Choice";
import { formatNumber } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import { type Explanation, type Step, stepsOf } from "src/pages/Models/explanations/explanation";

const PER_CENT = 100;

/** The reasons of one prediction, bar by bar from the background's mean to it; a table for those who hear it. */
export function Waterfall({ report }: { report: Explanation }) {
  const [chosen, choose] = useQueryParam("row", report.explained[0]?.key ?? "");
  const row = report.explained.find(({ key }) => key === chosen) ?? report.explained[0];
  if (!row) {
    return null;
  }
  const steps = stepsOf(row);
  const levels = [row.base, ...steps.map(({ to }) => to)];
  const ends = [Math.min(...levels), Math.max(...levels)] as const;
  const of = row.class_name === null ? "" : ` of ${row.class_name}`;
  return (
    <Stack gap={2}>
      <Choice
        label="Row"
        value={row.key}
        values={report.explained.map(({ key, prediction }) => ({
          value: key,
          label: `${key}: ${formatNumber(prediction)}`,
        }))}
        onChange={choose}
      />
      <Text fontSize="sm">
        Predicts {report.log_odds && "log-odds of "}
        {formatNumber(row.prediction)}
        {of}; the mean of {formatNumber(report.background_rows)} rows of the background is {formatNumber(row.base)}.
      </Text>
      <Box overflowX="auto">
        <Table.Root size="sm" maxW="5xl" aria-label={`Reasons of the prediction for row ${row.key}`}>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Feature</Table.ColumnHeader>
              <Table.ColumnHeader>Value</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Contribution</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Prediction so far</Table.ColumnHeader>
              <Table.ColumnHeader width="40%" aria-hidden />
            </Table.Row>
          </Table.Header>
          <Table.Body fontVariantNumeric="tabular-nums">
            {steps.map((step) => (
              <Table.Row key={step.label}>
                <Table.Cell py={1} overflowWrap="anywhere">
                  {step.label}
                </Table.Cell>
                <Table.Cell py={1} overflowWrap="anywhere">
                  {step.value}
                </Table.Cell>
                <Table.Cell py={1} textAlign="end" whiteSpace="nowrap">
                  {step.contribution > 0 ? "+" : ""}
                  {formatNumber(step.contribution, 3)}
                  {step.error > 0 && ` ± ${formatNumber(step.error, 2)}`}
                </Table.Cell>
                <Table.Cell py={1} textAlign="end">
                  {formatNumber(step.to, 3)}
                </Table.Cell>
                <Table.Cell py={1} aria-hidden>
                  <Bar step={step} ends={ends} />
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </Stack>
  );
}

function Bar({ step, ends: [low, high] }: { step: Step; ends: readonly [number, number] }) {
  const x = (level: number) => (PER_CENT * (level - low)) / (high - low || 1);
  const left = Math.min(x(step.from), x(step.to));
  const width = Math.abs(x(step.to) - x(step.from));
  return (
    <Box position="relative" h="14px" minW="120px">
      <Box
        position="absolute"
        h="full"
        left={`${left}%`}
        w={`max(${width}%, 1px)`}
        bg={step.contribution > 0 ? "blue.solid" : "orange.solid"}
      />
    </Box>
  );
}
