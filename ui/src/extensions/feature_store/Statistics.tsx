import { Heading, HStack, Stack, Text } from "@chakra-ui/react";
import {
  api,
  type Column,
  DataTable,
  formatNumber,
  formatPercent,
  LoadingRows,
  plural,
  QueryView,
  type Schemas,
  Sparkline,
  useQueryParam,
} from "airflow-hops";
import { useMemo } from "react";

type History = Schemas["StoredFeatureHistory"];
type Figures = Schemas["StoredFeatureWindow"];
type Format = (value: number | null | undefined) => string;

const share = (count: number, rows: number) => (rows > 0 ? count / rows : null);

const COLUMNS: Column<History>[] = [
  {
    key: "feature",
    label: "Feature",
    fixed: true,
    render: nameOf,
    value: nameOf,
  },
  series("rows", "Rows", ({ rows }) => rows, formatNumber, { fromZero: true }),
  series("missing", "Missing", ({ missing, rows }) => share(missing, rows), formatPercent, { fromZero: true }),
  series("mean", "Mean", ({ mean }) => mean, formatNumber),
  series("median", "Median", ({ quantiles }) => quantiles?.[1] ?? null, formatNumber),
  {
    key: "spread",
    label: "5% to 95%",
    help: "5th and 95th percentile in the newest window",
    render: ({ windows }) => {
      const quantiles = windows.at(-1)?.quantiles;
      return quantiles ? `${formatNumber(quantiles[0])} to ${formatNumber(quantiles[2])}` : "–";
    },
  },
  series("std", "Deviation", ({ std }) => std, formatNumber, { fromZero: true, optional: true }),
  series("distinct", "Distinct", ({ distinct }) => distinct, formatNumber, { fromZero: true }),
];

function nameOf({ view, feature }: History): string {
  return `${view}:${feature}`;
}

/** A figure over the windows as a line, with that of the newest window. */
function series(
  key: string,
  label: string,
  figure: (window: Figures) => number | null,
  format: Format,
  { fromZero = false, optional = false } = {},
): Column<History> {
  return {
    key,
    label,
    width: 190,
    optional,
    help: `In each window; the number is that of the newest${fromZero ? "" : ", and the line's scale its own"}`,
    render: (history) => {
      const values = history.windows.map(figure);
      const known = values.filter((value) => value !== null);
      if (known.length === 0) {
        return "–";
      }
      const newest = format(values.at(-1) ?? null);
      const low = Math.min(...known);
      return (
        <HStack gap={2}>
          <Sparkline
            values={values}
            min={fromZero ? 0 : low}
            label={`${label} of ${nameOf(history)}: now ${newest}, from ${format(low)} to ${format(Math.max(...known))}`}
          />
          <span>{newest}</span>
        </HStack>
      );
    },
    value: ({ windows }) => {
      const newest = windows.at(-1);
      return newest && figure(newest);
    },
    descendingFirst: true,
  };
}

/** The values of each feature in the windows that were loaded into the online store. */
export function Statistics({ dagId }: { dagId: string }) {
  const query = api.useQuery("get", "/api/dags/{dag_id}/features/statistics", { params: { path: { dag_id: dagId } } });
  return (
    <Stack as="section" gap={3} aria-labelledby="statistics">
      <Heading size="md" as="h2" id="statistics">
        Statistics over time
      </Heading>
      <QueryView query={query} loading={<LoadingRows />}>
        {(page) => <Features page={page} />}
      </QueryView>
    </Stack>
  );
}

function Features({ page: { entries: features, problems } }: { page: Schemas["Page_StoredFeatureHistory_"] }) {
  const [search] = useQueryParam("search");
  const rows = useMemo(() => {
    const wanted = search.toLowerCase();
    return features.filter((history) => nameOf(history).toLowerCase().includes(wanted));
  }, [features, search]);
  const windows = Math.max(0, ...features.map((history) => history.windows.length));
  return (
    <>
      <Text fontSize="sm" color="fg.muted">
        {windows > 0
          ? `Rows of the offline store in ${plural(windows, "window")} that MaterializeOperator loaded`
          : "No statistics yet: MaterializeOperator computes them for each window that it loads."}
      </Text>
      {problems.length > 0 && (
        <Text fontSize="sm">
          Statistics of {plural(problems.length, "window")} cannot be read: {problems[0]}
        </Text>
      )}
      {rows.length > 0 && (
        <DataTable
          rows={rows}
          columns={COLUMNS}
          rowKey={nameOf}
          label="Statistics of features"
          name="statistics-"
          initialSort={{ column: "feature", descending: false }}
        />
      )}
    </>
  );
}
