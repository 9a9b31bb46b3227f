import { Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { DataTable } from "src/components/DataTable";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import type { Column } from "src/components/table";
import { formatNumber, formatPercent, formatPValue, plural } from "src/format";
import { airflowTaskPath, instanceOf } from "src/routes";

type Audit = Schemas["AuditEntry"];
type Row = Schemas["AuditedColumn"];

const COLUMNS: Column<Row>[] = [
  { key: "column", label: "Column", fixed: true, render: ({ column }) => column, value: ({ column }) => column },
  { key: "view", label: "Feature", render: ({ view, feature }) => `${view}:${feature}`, value: ({ view }) => view },
  {
    key: "alarm",
    label: "Result",
    render: ({ alarm }) => <StateBadge state={alarm ? "error" : "ok"}>{alarm ? "differs" : "equal"}</StateBadge>,
    value: ({ alarm }) => Number(alarm),
    descendingFirst: true,
  },
  {
    key: "differing",
    label: "Rows that differ",
    align: "end",
    render: ({ differing, rows }) => `${formatNumber(differing)} (${formatPercent(rows ? differing / rows : null)})`,
    value: ({ differing }) => differing,
    descendingFirst: true,
  },
  {
    key: "causes",
    label: "Causes",
    width: 360,
    render: ({ causes }) =>
      Object.entries(causes)
        .sort(([, a], [, b]) => b - a)
        .map(([cause, rows]) => `${cause} ${formatNumber(rows)}`)
        .join(", ") || "–",
  },
  {
    key: "p",
    label: "p-value",
    align: "end",
    optional: true,
    render: ({ p_value }) => formatPValue(p_value),
    value: ({ p_value }) => p_value,
  },
];

/** The newest audit in full, and the verdicts of those before it. */
export function Audits({ audits }: { audits: readonly Audit[] }) {
  const [newest, ...older] = audits;
  const rows = useMemo(() => newest?.columns ?? [], [newest]);
  if (newest === undefined) {
    return (
      <Text fontSize="sm" color="fg.muted">
        No audits yet: AuditFeaturesOperator compares served values with those of the offline store.
      </Text>
    );
  }
  return (
    <Stack as="section" gap={3} aria-labelledby="audits">
      <Heading size="md" as="h2" id="audits">
        Audit
      </Heading>
      <Summary audit={newest} />
      {newest.problem && <Text fontSize="sm">The columns are not shown: {newest.problem}</Text>}
      {rows.length > 0 && (
        <DataTable
          rows={rows}
          columns={COLUMNS}
          rowKey={({ column }) => column}
          label="Audited columns"
          name="audit-"
          initialSort={{ column: "differing", descending: true }}
        />
      )}
      {older.map((audit) => (
        <Summary key={`${audit.run_id} ${audit.task_id} ${instanceOf(audit)}`} audit={audit} />
      ))}
    </Stack>
  );
}

function Summary({ audit }: { audit: Audit }) {
  const equal = audit.verdict === "equal";
  return (
    <HStack gap={2} fontSize="sm" wrap="wrap">
      <StateBadge state={equal ? "ok" : "error"}>{audit.verdict}</StateBadge>
      <Text>
        {plural(audit.rows, "row")} {audit.model === null ? "of a training set" : `of requests to ${audit.model}`},{" "}
        <Time at={audit.at} />
      </Text>
      <AppLink to={airflowTaskPath(audit)}>{audit.task_id}</AppLink>
    </HStack>
  );
}
