import { Heading, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { ERROR } from "src/components/colors";
import { DataTable } from "src/components/DataTable";
import { QueryView } from "src/components/QueryView";
import { StateBadge } from "src/components/StateBadge";
import type { Column } from "src/components/table";
import { formatNumber } from "src/format";
import { ClassTable, ConfusionMatrix } from "src/pages/Models/ClassTables";
import { classesOf, namesOf, numberOf, type Slice, type Split, splitsOf } from "src/pages/Models/figures";
import { useCandidateEvaluation } from "src/pages/Models/queries";
import { Numbers, Reasons } from "src/tabs/task/parts";

type Row = Omit<Slice, "value" | "slices"> & { split: string; slice: string | null; value: string };

/** A split, or one of its slices, a row. */
function rowsOf(splits: readonly Split[]): Row[] {
  return splits.flatMap(({ name: split, slices, ...whole }) => [
    { ...whole, split, slice: null, value: "" },
    ...Object.entries(slices ?? {}).flatMap(([slice, all]) =>
      all.map((each) => ({ ...each, split, slice, value: String(each.value) })),
    ),
  ]);
}

/** An evaluation: the verdict and why, the figures overall and by slice, candidate beside champion. */
export function EvaluationResult({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const query = useCandidateEvaluation(artifact);
  return (
    <QueryView query={query}>
      {({ report }) => {
        const metric = String(report.rule.metric);
        const champion = report.champion?.version;
        const whole = splitsOf(report);
        return (
          <>
            <Numbers
              of={[
                ["verdict", <StateBadge key="verdict" state={report.blessed ? "blessed" : "not blessed"} />],
                ...whole.map(
                  ({ name, candidate }) => [`${metric} of ${name}`, formatNumber(numberOf(candidate, metric))] as const,
                ),
                ["champion", champion == null ? "none" : `v${champion}`],
              ]}
            />
            <Reasons of={report.reasons ?? []} />
            <Slices splits={whole} metric={metric} />
            {whole
              .filter(({ candidate }) => classesOf(candidate).length > 0)
              .map(({ name, candidate, champion }) => (
                <Stack key={name} as="section" aria-label={`Classes on ${name}`} gap={3}>
                  <Heading as="h3" size="sm">
                    Classes, on {name}
                  </Heading>
                  <ConfusionMatrix figures={candidate} />
                  <ClassTable candidate={candidate} champion={champion} name={`${name}class`} />
                </Stack>
              ))}
          </>
        );
      }}
    </QueryView>
  );
}

function Slices({ splits, metric }: { splits: readonly Split[]; metric: string }) {
  const rows = rowsOf(splits);
  const hasChampion = rows.some(({ champion }) => champion !== null);
  const others = namesOf(rows[0]?.candidate ?? {}).filter((name) => name !== metric);
  const columns: Column<Row>[] = [
    {
      key: "split",
      label: "Split",
      fixed: true,
      width: 100,
      value: ({ split }) => split,
      render: ({ split }) => split,
    },
    {
      key: "slice",
      label: "Slice",
      width: 180,
      value: ({ slice, value }) => (slice === null ? "" : `${slice} ${value}`),
      render: ({ slice, value }) => (slice === null ? <Text fontWeight="semibold">all</Text> : `${slice} = ${value}`),
    },
    {
      key: "rows",
      label: "Rows",
      align: "end",
      width: 90,
      descendingFirst: true,
      value: (row) => row.rows,
      render: (row) => formatNumber(row.rows),
    },
    {
      key: "candidate",
      label: metric,
      align: "end",
      width: 100,
      descendingFirst: true,
      value: ({ candidate }) => numberOf(candidate, metric),
      render: ({ candidate }) => formatNumber(numberOf(candidate, metric)),
    },
    ...(hasChampion
      ? [
          {
            key: "champion",
            label: "Champion's",
            align: "end",
            width: 110,
            value: ({ champion }: Row) => numberOf(champion, metric),
            render: ({ champion }: Row) => formatNumber(numberOf(champion, metric)),
          } satisfies Column<Row>,
          {
            key: "difference",
            label: "Gain (95% interval)",
            align: "end",
            width: 230,
            value: ({ gain }: Row) => gain?.difference,
            render: (row: Row) => <Difference row={row} />,
          } satisfies Column<Row>,
        ]
      : []),
    ...others.map(
      (name): Column<Row> => ({
        key: `candidate.${name}`,
        label: name,
        align: "end",
        optional: true,
        value: ({ candidate }) => numberOf(candidate, name),
        render: ({ candidate }) => formatNumber(numberOf(candidate, name)),
      }),
    ),
  ];
  return (
    <DataTable
      label="Figures by slice"
      name="slices"
      rows={rows}
      columns={columns}
      rowKey={({ split, slice, value }) => `${split} ${slice} ${value}`}
      maxHeight="50vh"
    />
  );
}

/** Coloured only where the interval does not hold zero: else it may be chance. */
function Difference({ row: { gain } }: { row: Row }) {
  if (gain?.difference == null) {
    return "–";
  }
  const { difference, low, high } = gain;
  const sign = difference > 0 ? "+" : "";
  const color = low !== null && low > 0 ? "fg.success" : high !== null && high < 0 ? ERROR : undefined;
  return (
    <Text as="span" color={color}>
      {sign}
      {formatNumber(difference, 3)} ({formatNumber(low, 3)} to {formatNumber(high, 3)})
    </Text>
  );
}
