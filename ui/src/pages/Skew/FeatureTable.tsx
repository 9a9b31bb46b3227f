import { Box, chakra, HStack, Text } from "@chakra-ui/react";
import { useEffect, useMemo, useRef } from "react";
import type { Schemas } from "src/api/client";
import { useSkewReport } from "src/api/skew";
import { ChoiceFilter, type Column, column, DataTable, FilterBar, numberColumn, SearchInput } from "src/components";
import { countOf, formatNumber, formatTime, plural } from "src/format";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { HeatStrip } from "src/pages/Skew/HeatStrip";
import { HEAT, STRIPS } from "src/pages/Skew/heat";
import { type Check, type FeatureRow, newestOf, timesOf } from "src/pages/Skew/timeline";
import { changeInWords, formatEffect } from "src/pages/Skew/words";

const STRIP = 300;

interface Props {
  rows: readonly FeatureRow[];
  checks: readonly Check[];
  opened: string | null;
  chosen: number;
  onOpen: (feature: string, check?: number) => void;
}

/** A row a feature: how it moved, comparison by comparison. */
export function FeatureTable({ rows, checks, opened, chosen, onOpen }: Props) {
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
  const { data: report } = useSkewReport((checks[newestOf(checks)] ?? checks[0]) as Check);
  const columns = useMemo(() => {
    const found = new Map(report?.features.map((each) => [each.name, each]));
    return makeColumns(checks, chosen, zone, found, (row, index) => open.current(row.name, index));
  }, [checks, chosen, zone, report]);
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
        initialSort={{ column: "change", descending: false }}
        maxHeight="56vh"
        rowHeight={42}
        opened={opened}
        onOpen={(row) => onOpen(row.name)}
        columns={columns}
        toolbar={
          <FilterBar summary={countOf(shown.length, rows.length, "feature")}>
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
  found: ReadonlyMap<string, Schemas["FeatureFigures"]>,
  onChoose: (row: FeatureRow, check: number) => void,
): Column<FeatureRow>[] {
  const times = timesOf(checks, "data").map((time) => formatTime(time, zone));
  return [
    { key: "feature", label: "Feature", fixed: true, width: 200, value: (row) => row.name, render: name },
    column("change", "Change", {
      width: 420,
      minWidth: 260,
      help: "What changed from the reference to the newest comparison, sorted by how much it matters: drifted features first",
      value: (row) => row.rank,
      render: (row) => {
        const feature = found.get(row.name);
        const words = feature ? changeInWords(feature, row.problem) : "";
        return (
          <span data-change={row.streak > 0 ? "drifted" : ""} title={words}>
            {words || "–"}
          </span>
        );
      },
    }),
    column("windows", `${checks.length === 1 ? "Comparison" : plural(checks.length, "comparison")}, oldest to newest`, {
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
    }),
    numberColumn("now", "Distance (of rows)", (row) => row.now, {
      width: 150,
      help: "In the newest comparison: 0 for the same distribution, 1 if no row would remain as it is",
      format: twoDigits,
    }),
    numberColumn("threshold", "Threshold", (row) => row.threshold, { width: 90, format: twoDigits }),
    numberColumn("streak", "Drifted for", (row) => row.streak, {
      width: 100,
      help: "Number of consecutive comparisons, up to the newest, in which the feature has drifted",
      format: (streak) => (streak ? `${streak} in a row` : "–"),
    }),
    numberColumn("effect", "Effect", (row) => row.effect, {
      optional: true,
      width: 90,
      help: "How much the drift moves a prediction on average: in the label's unit for a number, otherwise in percentage points",
      render: (row) => formatEffect(row.effect, row.problem),
    }),
  ];
}

const twoDigits = (value: number | null | undefined): string => formatNumber(value, 2);

const name = (row: FeatureRow) => (
  <Text as="span" fontWeight="medium" title={row.name}>
    {row.name}
  </Text>
);

function Legend() {
  return (
    <HStack
      gap={3}
      fontSize="xs"
      color="fg.muted"
      aria-label="Colours of the cells: distance ÷ threshold"
      flexWrap="wrap"
    >
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
