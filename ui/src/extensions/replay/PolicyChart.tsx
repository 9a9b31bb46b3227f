import { Stack, Text, useBreakpointValue } from "@chakra-ui/react";
import { Chart, metricLabel, useChartTheme, useTimezone } from "airflow-hops";
import { useMemo } from "react";
import { chartOption, heightFor, isMark } from "src/extensions/replay/chartOption";
import { usePolicyColors } from "src/extensions/replay/colors";
import type { Report } from "src/extensions/replay/report";

/** The metric of each policy over time, and which candidate served it when; a mark opens its decision. */
export function PolicyChart({ report, onOpen }: { report: Report; onOpen: (policy: string, at: string) => void }) {
  const theme = useChartTheme();
  const zone = useTimezone();
  const colors = usePolicyColors(report);
  const narrow = useBreakpointValue({ base: true, md: false }) ?? false;
  const option = useMemo(() => chartOption(report, colors, theme, zone, narrow), [report, colors, theme, zone, narrow]);
  const click = (event: unknown) => {
    const { data } = event as { data?: unknown };
    if (isMark(data)) {
      onOpen(data.policy, data.at);
    }
  };
  const metric = metricLabel(report.metric);
  return (
    <Stack gap={1}>
      <Chart
        option={option}
        handlers={{ click }}
        height={heightFor(report.policies.length + (report.best ? 1 : 0))}
        label={`${metric} over time by policy, with its retrainings; below, which candidate served each policy when, and its decisions. The table's rows open them, too`}
      />
      <Text fontSize="xs" color="fg.muted">
        Circles are retrainings: filled where the gate let the candidate serve, hollow where it did not. Below, bars are
        spans in which one candidate served, and dots decisions; click one for its reasons.
      </Text>
    </Stack>
  );
}
