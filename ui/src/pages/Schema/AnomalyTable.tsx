import { HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { ChoiceFilter, type Column, column, DataTable, FilterBar, SearchInput, StateBadge } from "src/components";
import { countOf, formatPercent } from "src/format";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { type Finding, rankOf } from "src/pages/Schema/findings";
import type { ValidationReport } from "src/pages/Schema/queries";
import { Value } from "src/pages/Schema/Value";
import { foundInWords, rowCount } from "src/pages/Schema/words";

interface Props {
  report: ValidationReport;
  findings: readonly Finding[];
  opened: string | null;
  onOpen: (feature: string) => void;
}

/** The anomalies in words, a row a feature: how many rows of each split, and examples of the values. */
export function AnomalyTable({ report, findings, opened, onOpen }: Props) {
  const [search] = useQueryParam("search");
  const [severities] = useQueryList("severity");
  const rows = useMemo(
    () =>
      findings.filter(
        ({ feature, severity, values }) =>
          (feature.toLowerCase().includes(search.toLowerCase()) ||
            values.some((value) => value.toLowerCase().includes(search.toLowerCase()))) &&
          (severities.length === 0 || severities.includes(severity)),
      ),
    [findings, search, severities],
  );
  const columns = useMemo(() => makeColumns(report), [report]);
  const drifted = findings.filter((each) => each.drifted).length;
  const isAll = rows.length === findings.length;
  if (findings.length === 0) {
    return (
      <HStack gap={2} fontSize="sm">
        <StateBadge state="ok">no anomalies</StateBadge>
        <Text color="fg.muted">The data fits the schema.</Text>
      </HStack>
    );
  }
  return (
    <DataTable
      label="Anomalies"
      name="anomalies"
      rows={rows}
      rowKey={({ feature }) => feature}
      columns={columns}
      opened={opened}
      onOpen={({ feature }) => onOpen(feature)}
      maxHeight="50vh"
      toolbar={
        <FilterBar
          summary={
            isAll ? foundInWords(findings.length - drifted, drifted) : countOf(rows.length, findings.length, "feature")
          }
        >
          <SearchInput placeholder="Search features and values" />
          <ChoiceFilter
            name="severity"
            label="Severity"
            choices={(["error", "warning"] as const).map((value) => ({
              value,
              count: findings.filter(({ severity }) => severity === value).length,
            }))}
          />
        </FilterBar>
      }
    />
  );
}

function makeColumns(report: ValidationReport): Column<Finding>[] {
  const splits = Object.keys(report.rows);
  return [
    column("severity", "Severity", {
      fixed: true,
      width: 105,
      descendingFirst: true,
      value: rankOf,
      render: ({ severity, drifted }) => <StateBadge state={drifted ? "drift" : severity} size="xs" />,
    }),
    column("feature", "Feature", {
      fixed: true,
      width: 160,
      value: ({ feature }) => feature,
      render: ({ feature }) => (
        <Text as="span" fontWeight="medium" title={feature}>
          {feature || <i>the data set</i>}
        </Text>
      ),
    }),
    column("what", "Anomaly", {
      width: 190,
      value: ({ summaries }) => summaries.join("; "),
      render: ({ summaries }) => <span title={summaries.join("; ")}>{summaries.join("; ")}</span>,
    }),
    column("values", "Examples", {
      width: 230,
      help: "Values that violate the schema, most frequent first",
      render: ({ values, valuesCount }) => (
        <HStack gap={1} overflow="hidden">
          {values.slice(0, 8).map((value) => (
            <Value key={value}>{value}</Value>
          ))}
          {valuesCount > 8 && <Text color="fg.muted">and {valuesCount - 8} more</Text>}
        </HStack>
      ),
    }),
    ...splits.map(
      (split): Column<Finding> => ({
        key: `rows ${split}`,
        label: `Rows of ${split}`,
        width: 160,
        align: "end",
        descendingFirst: true,
        help: `Rows of the split ${split} that have the anomaly, and their share`,
        value: ({ bySplit }) => bySplit[split]?.rows ?? null,
        render: ({ bySplit }) => <Rows found={bySplit[split]} of={report.rows[split] ?? 0} />,
      }),
    ),
  ];
}

function Rows({ found, of }: { found: Finding["bySplit"][string] | undefined; of: number }) {
  if (found === undefined) {
    return <Text color="fg.muted">–</Text>;
  }
  if (found.rows === null) {
    return <Text color="fg.muted">found</Text>;
  }
  return (
    <HStack gap={2} justify="flex-end">
      <Text>{rowCount(found.rows, found.exact)}</Text>
      <Text color="fg.muted" minW="12">
        {formatPercent(of ? found.rows / of : null, 2)}
      </Text>
    </HStack>
  );
}
