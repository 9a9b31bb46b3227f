import { Box, chakra, HStack, Text } from "@chakra-ui/react";
import { useEffect, useMemo, useRef } from "react";
import { ERROR } from "src/components/colors";
import { DataTable } from "src/components/DataTable";
import { ChoiceFilter, FilterBar, SearchInput } from "src/components/FilterBar";
import { Sparkline } from "src/components/Sparkline";
import type { Column } from "src/components/table";
import { formatNumber, formatTime, plural } from "src/format";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { HeatStrip } from "src/pages/Skew/HeatStrip";
import { HEAT, STRIPS } from "src/pages/Skew/heat";
import { type Check, type FeatureRow, timesOf } from "src/pages/Skew/timeline";
import { CAUSE_LABELS, FAULTS, formatEffect, formatRatio } from "src/pages/Skew/words";

const STRIP = 300;
const LINE = 130;

/** A row a feature: how it moved, comparison by comparison. */
export function FeatureTable({
  rows,
  checks,
  opened,
  chosen,
  onOpen,
}: {
  rows: readonly FeatureRow[];
  checks: readonly Check[];
  opened: string | null;
  chosen: number;
  onOpen: (feature: string, check?: number) => void;
}) {
  const [search] = useQueryParam("search");
  const [states] = useQueryList("state");
  const shown = useMemo(() => {
    const wanted = search.toLowerCase();
    return rows.filter(
      (row) =>
        row.name.toLowerCase().includes(wanted) &&
        (states.length === 0 || states.includes(row.streak > 0 ? "drifted" : row.driftedCount ? "before" : "never")),
    );
  }, [rows, search, states]);
  const zone = useTimezone();
  // Rows are drawn anew where columns are.
  const open = useRef(onOpen);
  useEffect(() => {
    open.current = onOpen;
  }, [onOpen]);
  const columns = useMemo(
    () => makeColumns(checks, chosen, zone, (row, index) => open.current(row.name, index)),
    [checks, chosen, zone],
  );
  const counts = { drifted: 0, before: 0, never: 0 };
  for (const row of rows) {
    counts[row.streak > 0 ? "drifted" : row.driftedCount ? "before" : "never"] += 1;
  }
  return (
    <Box css={STRIPS}>
      <DataTable
        label="Features"
        rows={shown}
        rowKey={(row) => row.name}
        initialSort={{ column: "now", descending: true }}
        maxHeight="56vh"
        rowHeight={34}
        opened={opened}
        onOpen={(row) => onOpen(row.name)}
        columns={columns}
        toolbar={
          <FilterBar
            summary={
              shown.length === rows.length
                ? plural(rows.length, "feature")
                : `${shown.length} of ${plural(rows.length, "feature")}`
            }
          >
            <SearchInput placeholder="Search features" />
            <ChoiceFilter
              name="state"
              label="State"
              choices={[
                { value: "drifted", label: "Drifted now", count: counts.drifted },
                { value: "before", label: "Drifted before", count: counts.before },
                { value: "never", label: "Never drifted", count: counts.never },
              ]}
            />
            <Legend />
          </FilterBar>
        }
      />
    </Box>
  );
}

function makeColumns(
  checks: readonly Check[],
  chosen: number,
  zone: string,
  onChoose: (row: FeatureRow, check: number) => void,
): Column<FeatureRow>[] {
  const times = timesOf(checks, "data").map((time) => formatTime(time, zone));
  return [
    { key: "feature", label: "Feature", fixed: true, width: 190, value: (row) => row.name, render: name },
    {
      key: "windows",
      label: `${checks.length === 1 ? "Comparison" : plural(checks.length, "comparison")}, oldest to newest`,
      width: STRIP + 28,
      render: (row) => (
        <HeatStrip
          row={row}
          checks={checks}
          times={times}
          chosen={chosen}
          width={Math.min(STRIP, checks.length * 30)}
          onChoose={(index) => onChoose(row, index)}
        />
      ),
    },
    {
      key: "line",
      label: "Score ÷ threshold",
      width: LINE + 28,
      help: "The dashed line is the threshold; each row has its own scale",
      render: (row) => (
        <Sparkline
          values={row.ratios}
          threshold={1}
          width={LINE}
          palette={row.streak > 0 ? "orange" : "blue"}
          label={`${row.name}: now ${formatRatio(row.now)} the threshold, at most ${formatRatio(row.worst)}`}
        />
      ),
    },
    figure("now", "Now", (row) => row.now, "Score ÷ threshold in the newest comparison"),
    figure("worst", "Worst", (row) => row.worst, "The highest score ÷ threshold of all comparisons"),
    {
      key: "streak",
      label: "Drifted for",
      align: "end",
      width: 100,
      descendingFirst: true,
      help: "Number of consecutive comparisons, up to the newest, in which the feature has drifted",
      value: (row) => row.streak,
      render: (row) => (row.streak ? `${row.streak} in a row` : "–"),
    },
    {
      key: "cause",
      label: "Looks like",
      width: 130,
      value: (row) => row.cause,
      render: (row) =>
        row.cause === null ? (
          <Text color="fg.muted">–</Text>
        ) : (
          <Text color={FAULTS.has(row.cause) ? ERROR : undefined}>{CAUSE_LABELS[row.cause] ?? row.cause}</Text>
        ),
    },
    {
      key: "effect",
      label: "Effect",
      align: "end",
      width: 90,
      descendingFirst: true,
      help: "How much the drift moves a prediction on average: in the label's unit for a number, otherwise in percentage points",
      value: (row) => row.effect,
      render: (row) => formatEffect(row.effect, row.problem),
    },
    {
      key: "threshold",
      label: "Threshold",
      align: "end",
      optional: true,
      value: (row) => row.thresholds.at(-1),
      render: (row) => formatNumber(row.thresholds.at(-1)),
    },
    {
      key: "score",
      label: "Score",
      align: "end",
      optional: true,
      descendingFirst: true,
      value: (row) => row.scores.at(-1),
      render: (row) => formatNumber(row.scores.at(-1)),
    },
  ];
}

const name = (row: FeatureRow) => (
  <Text as="span" fontWeight="medium" title={row.name}>
    {row.name}
  </Text>
);

function figure(
  key: string,
  label: string,
  value: (row: FeatureRow) => number | null,
  help: string,
): Column<FeatureRow> {
  return {
    key,
    label,
    help,
    value,
    align: "end",
    width: 80,
    descendingFirst: true,
    render: (row) => (
      <Text as="span" fontWeight={(value(row) ?? 0) > 1 ? "semibold" : undefined}>
        {formatRatio(value(row))}
      </Text>
    ),
  };
}

function Legend() {
  return (
    <HStack gap={3} fontSize="xs" color="fg.muted" aria-label="Colours: score ÷ threshold" flexWrap="wrap">
      {HEAT.map(({ token, label }) => (
        <HStack key={token} gap={1}>
          <Box width={3} height={3} borderRadius="sm" bg={token} />
          {label}
        </HStack>
      ))}
      <HStack gap={1}>
        <chakra.span width={3} height={3} borderRadius="sm" borderWidth={1} />
        not compared
      </HStack>
    </HStack>
  );
}
