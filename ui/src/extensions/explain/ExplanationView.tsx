import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import {
  type Column,
  column,
  DataTable,
  formatNumber,
  intervalInWords,
  LinesAlert,
  Numbers,
  numberColumn,
  Part,
} from "airflow-hops";
import { DependenceCharts } from "src/extensions/explain/DependenceCharts";
import { type Explanation, type Importance, newlyUsed, noLongerUsed } from "src/extensions/explain/explanation";
import { Waterfall } from "src/extensions/explain/Waterfall";

const PER_CENT = 100;

/** What a model looks at, how its predictions depend on it, and the reasons of some of them. */
export function ExplanationView({ report }: { report: Explanation }) {
  const champion = report.champion === null ? null : `v${report.champion?.version}`;
  const fresh = newlyUsed(report);
  const gone = noLongerUsed(report);
  return (
    <Stack gap={5}>
      <LinesAlert lines={report.warnings} />
      <Numbers
        of={[
          [report.loss, formatNumber(report.candidate_loss)],
          ...(champion === null ? [] : ([[`of champion ${champion}`, formatNumber(report.champion_loss)]] as const)),
          ["of a constant", formatNumber(report.constant_loss)],
          [`rows of ${report.split}`, formatNumber(report.rows)],
        ]}
      />
      {champion !== null && (
        <Text fontSize="sm">
          {fresh.length > 0 ? `Looks at what champion ${champion} does not: ${fresh.join(", ")}. ` : ""}
          {gone.length > 0 ? `No longer looks at: ${gone.join(", ")}.` : ""}
          {fresh.length + gone.length === 0 && `Looks at the same features as champion ${champion}.`}
        </Text>
      )}
      <Part
        title="Importance"
        note={`By how much the ${report.loss} rises if a feature is shuffled among the rows, with 95% intervals; pale where it may be chance.`}
      >
        <ImportanceTable report={report} champion={champion} />
      </Part>
      {report.dependence.length > 0 && (
        <Part
          title="Dependence"
          note="The mean prediction if all rows had a value. Columns: how many of the rows have it, or are nearest to it."
        >
          <DependenceCharts report={report} champion={champion} />
        </Part>
      )}
      {report.explained.length > 0 && (
        <Part title="Reasons of single predictions">
          <Waterfall report={report} />
        </Part>
      )}
    </Stack>
  );
}

function ImportanceTable({ report, champion }: { report: Explanation; champion: string | null }) {
  const ends = report.importance.flatMap((each) => [each.candidate?.[2] ?? 0, each.champion?.[2] ?? 0]);
  const far = Math.max(...ends, Number.MIN_VALUE);
  const columns: Column<Importance>[] = [
    { key: "feature", label: "Feature", fixed: true, value: ({ feature }) => feature },
    rise("Rise (95% interval)", "candidate"),
    ...(champion === null ? [] : [rise(`Champion ${champion}`, "champion")]),
    column("bars", "Bars", {
      width: 240,
      render: (each) => (
        <Stack gap={0.5} aria-hidden>
          <Bar rise={each.candidate} far={far} palette="blue" isPale={!each.is_beyond_chance} />
          {champion !== null && <Bar rise={each.champion} far={far} palette="orange" isPale={false} />}
        </Stack>
      ),
    }),
    column("chance", "Beyond chance", {
      width: 120,
      value: ({ is_beyond_chance }) => (is_beyond_chance ? 1 : 0),
      render: ({ is_beyond_chance }) => (is_beyond_chance ? "yes" : "no"),
    }),
  ];
  return (
    <Stack gap={1}>
      {champion !== null && (
        <HStack gap={4} fontSize="xs" aria-hidden>
          <Key palette="blue">this model</Key>
          <Key palette="orange">champion {champion}</Key>
        </HStack>
      )}
      <DataTable
        label="Importance of features"
        name="importance"
        rows={report.importance}
        columns={columns}
        rowKey={({ feature }) => feature}
        maxHeight="50vh"
      />
      {report.features > report.importance.length && (
        <Text fontSize="xs" color="fg.muted">
          {formatNumber(report.features - report.importance.length)} more features matter less
        </Text>
      )}
    </Stack>
  );
}

function Key({ palette, children }: { palette: string; children: React.ReactNode }) {
  return (
    <HStack gap={1}>
      <Box bg={`${palette}.solid`} w={3} h={2} />
      {children}
    </HStack>
  );
}

const rise = (label: string, model: "candidate" | "champion"): Column<Importance> =>
  numberColumn(model, label, (each) => each[model]?.[0], {
    width: 210,
    render: (each) => intervalInWords(each[model], 3),
  });

interface Props {
  rise: readonly number[] | null | undefined;
  far: number;
  palette: string;
  isPale: boolean;
}

/** The rise as a bar, and its interval as a line. */
function Bar({ rise, far, palette, isPale }: Props) {
  const [value = 0, low = 0, high = 0] = rise ?? [];
  const x = (each: number) => (PER_CENT * Math.max(each, 0)) / far;
  return (
    <Box position="relative" h="10px" colorPalette={palette}>
      <Box bg={isPale ? "colorPalette.muted" : "colorPalette.solid"} h="full" w={`${x(value)}%`} />
      <Box position="absolute" bg="fg" h="1px" top="50%" left={`${x(low)}%`} w={`${Math.max(x(high) - x(low), 0)}%`} />
    </Box>
  );
}
