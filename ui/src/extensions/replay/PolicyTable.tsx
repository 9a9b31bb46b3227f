import { Box, HStack, Text } from "@chakra-ui/react";
import { type Column, column, DataTable, formatNumber, intervalInWords, metricLabel } from "airflow-hops";
import { useMemo } from "react";
import { LuTrophy } from "react-icons/lu";
import { usePolicyColors } from "src/extensions/replay/colors";
import { netOf, type Policy, type Report } from "src/extensions/replay/report";

interface Row {
  policy: Policy;
  /** Whether it is the best schedule in hindsight, which comes last by any order. */
  best: boolean;
}

interface Props {
  report: Report;
  price: number;
  chosen: string | undefined;
  opened: string | undefined;
  onOpen: (policy: string) => void;
}

/** The policies beside each other, the one chosen at the price marked, and the best in hindsight below them. */
export function PolicyTable({ report, price, chosen, opened, onOpen }: Props) {
  const colors = usePolicyColors(report);
  const rows = useMemo(
    () => [
      ...report.policies.map((policy) => ({ policy, best: false })),
      ...(report.best ? [{ policy: report.best, best: true }] : []),
    ],
    [report],
  );
  const columns = useMemo(() => columnsFor(report, price, chosen, colors), [report, price, chosen, colors]);
  return (
    <DataTable
      label="Policies"
      name="policies"
      rows={rows}
      rowKey={({ policy }) => policy.name}
      columns={columns}
      initialSort={{ column: "net", descending: true }}
      onOpen={({ policy }) => onOpen(policy.name)}
      opened={opened}
    />
  );
}

export function columnsFor(
  report: Report,
  price: number,
  chosen: string | undefined,
  colors: ReadonlyMap<string, string>,
): Column<Row>[] {
  const figure = (
    key: string,
    label: string,
    help: string,
    value: (policy: Policy) => number,
    more: Partial<Column<Row>> & { words?: (policy: Policy) => string } = {},
  ): Column<Row> => ({
    key,
    label,
    help,
    align: "end",
    width: 126,
    minWidth: 96,
    descendingFirst: true,
    value: ({ policy, best }) => (best ? null : value(policy)),
    render: ({ policy, best }) => (
      <Text as="span" color={best ? "fg.muted" : undefined}>
        {more.words?.(policy) ?? formatNumber(value(policy), 3)}
      </Text>
    ),
    ...more,
  });
  const hours = { width: 110, minWidth: 90 };
  return [
    column("policy", "Policy", {
      fixed: true,
      width: 228,
      minWidth: 140,
      value: ({ policy, best }) => (best ? null : policy.name),
      render: ({ policy: { name }, best }) => (
        <HStack gap={2}>
          <Box flexShrink={0} boxSize="10px" borderRadius="sm" style={{ background: colors.get(name) }} />
          <Text truncate title={name} color={best ? "fg.muted" : undefined}>
            {name}
          </Text>
          {name === chosen && !best && <LuTrophy aria-label={`earns most at a price of ${price}`} />}
        </HStack>
      ),
    }),
    figure(
      "average",
      `Average ${metricLabel(report.metric)}`,
      "Over the rows; 95% interval by resampled blocks of periods",
      ({ average }) => average[0],
      {
        width: 208,
        minWidth: 195,
        descendingFirst: !report.lower_is_better,
        words: ({ average }) => intervalInWords(average),
      },
    ),
    figure(
      "better",
      "Better than never",
      "Than never to retrain, on the same blocks; above 0 is better, whatever the metric",
      ({ better }) => better[0],
      { width: 222, minWidth: 200, words: ({ better }) => intervalInWords(better, 3) },
    ),
    figure("trainings", "Trainings", "Those that the gate rejected are paid, too", (of) => of.retrainings.length, {
      width: 130,
      minWidth: 120,
      words: ({ retrainings }) => {
        const rejected = retrainings.filter(({ promoted }) => !promoted).length;
        return `${retrainings.length}${rejected ? `, ${rejected} rejected` : ""}`;
      },
    }),
    figure(
      "alarms",
      "False alarms",
      "Retrainings that were not better than the model before them",
      ({ false_alarms }) => false_alarms,
    ),
    figure("cores", "Core hours", "Of its trainings", ({ core_hours }) => core_hours, hours),
    ...(report.policies.some(({ gpu_hours }) => gpu_hours > 0)
      ? [figure("gpus", "GPU hours", "Of its trainings", ({ gpu_hours }) => gpu_hours, hours)]
      : []),
    figure(
      "net",
      `Net at ${formatNumber(price, 3)}`,
      `Better than never, less ${formatNumber(price)} for each training`,
      (policy) => netOf(policy, price),
    ),
    figure(
      "regret",
      `Regret at ${formatNumber(report.price, 3)}`,
      "By how much it earned less than the best schedule in hindsight, at the price of the report alone",
      ({ regret }) => regret,
      { width: 145, minWidth: 100, descendingFirst: false },
    ),
  ];
}
