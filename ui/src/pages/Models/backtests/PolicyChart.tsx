import { Stack, Text, useBreakpointValue } from "@chakra-ui/react";
import { useMemo } from "react";
import { Chart } from "src/components/chart/Chart";
import { useChartTheme } from "src/components/chart/theme";
import { useTimezone } from "src/host";
import { chartOption, heightFor, isMark } from "src/pages/Models/backtests/chartOption";
import { usePolicyColors } from "src/pages/Models/backtests/colors";
import type { Report } from "src/pages/Models/backtests/report";
import { metricLabel } from "src/pages/Models/words";

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
