import { Box, Stack, Text } from "@chakra-ui/react";
import { Choice, formatNumber, PlainTable, useQueryParam } from "airflow-hops";
import { type Explanation, type Step, stepsOf } from "src/extensions/explain/explanation";

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
      <PlainTable
        label={`Reasons of the prediction for row ${row.key}`}
        maxW="5xl"
        dense
        rows={steps}
        rowKey={({ label }) => label}
        columns={[
          { label: "Feature", cell: ({ label }) => label },
          { label: "Value", cell: ({ value }) => value },
          { label: "Contribution", end: true, cell: contributionOf },
          { label: "Prediction so far", end: true, cell: ({ to }) => formatNumber(to, 3) },
          { label: "", cell: (step) => <Bar step={step} ends={ends} /> },
        ]}
      />
    </Stack>
  );
}

const contributionOf = ({ contribution, error }: Step): string =>
  `${contribution > 0 ? "+" : ""}${formatNumber(contribution, 3)}${error > 0 ? ` ± ${formatNumber(error, 2)}` : ""}`;

function Bar({ step, ends: [low, high] }: { step: Step; ends: readonly [number, number] }) {
  const x = (level: number) => (PER_CENT * (level - low)) / (high - low || 1);
  const left = Math.min(x(step.from), x(step.to));
  const width = Math.abs(x(step.to) - x(step.from));
  return (
    <Box position="relative" h="14px" minW={{ base: "120px", md: "320px" }} aria-hidden>
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
