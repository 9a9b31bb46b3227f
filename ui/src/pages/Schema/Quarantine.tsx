import { Box, Heading, HStack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, type Schemas } from "src/api/client";
import { Choice, type Column, column, DataTable, QueryView } from "src/components";
import { formatNumber, plural } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { type ArtifactRef, pathOf } from "src/routes";

type Found = Schemas["QuarantinedRows"];
interface Row {
  index: number;
  values: readonly (string | null)[];
  reasons: Found["reasons"][number];
}

/** Rows that break the schema and were put apart, with the cells that are to blame. */
export function Quarantine({
  address,
  quarantined,
}: {
  address: ArtifactRef;
  quarantined: Readonly<Record<string, number>>;
}) {
  const [query, change] = useQuery();
  const splits = Object.entries(quarantined).filter(([, rows]) => rows > 0);
  const named = query.get("split");
  const split = splits.find(([name]) => name === named)?.[0] ?? splits[0]?.[0];
  if (Object.keys(quarantined).length === 0) {
    return null;
  }
  return (
    <Box as="section" aria-label="Quarantine" mt={6}>
      <HStack mb={3} gap={3} wrap="wrap">
        <Heading size="sm">Rows in quarantine</Heading>
        {splits.length > 1 && (
          <Choice
            quiet
            size="sm"
            label="Split"
            value={split ?? ""}
            onChange={(value) => change({ split: value })}
            values={splits.map(([value, rows]) => ({ value, label: `${value} (${formatNumber(rows)})` }))}
          />
        )}
      </HStack>
      {split === undefined ? (
        <Text fontSize="sm" color="fg.muted">
          None: no single row violates the schema.
        </Text>
      ) : (
        <Rows address={address} split={split} />
      )}
    </Box>
  );
}

function Rows({ address, split }: { address: ArtifactRef; split: string }) {
  const rows = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/quarantine",
    { params: { path: pathOf(address), query: { split } } },
    { placeholderData: keepPreviousData },
  );
  return <QueryView query={rows}>{(found) => <Sample found={found} />}</QueryView>;
}

function Sample({ found }: { found: Found }) {
  const rows = useMemo(
    () => found.rows.map((values, index): Row => ({ index, values, reasons: found.reasons[index] ?? [] })),
    [found],
  );
  const columns = useMemo(() => makeColumns(found), [found]);
  return (
    <DataTable
      label="Rows in quarantine"
      name="quarantine"
      rows={rows}
      rowKey={({ index }) => String(index)}
      columns={columns}
      maxHeight="45vh"
      toolbar={
        <Text color="fg.muted" fontSize="sm">
          {found.listed < found.total
            ? `${formatNumber(found.listed)} of ${plural(found.total, "row")}, some of every violated rule`
            : plural(found.total, "row")}
        </Text>
      }
    />
  );
}

/** Why first; then the columns that are to blame, then all others. */
function makeColumns(found: Found): Column<Row>[] {
  const blamed = new Set(found.reasons.flat().map(({ feature }) => feature));
  const order = found.columns.map((name, index) => ({ name, index }));
  order.sort((one, other) => Number(blamed.has(other.name)) - Number(blamed.has(one.name)) || one.index - other.index);
  return [
    column("reasons", "Why", {
      fixed: true,
      width: 340,
      render: ({ reasons }) => {
        const told = reasons.map(({ feature, text }) => `${feature}: ${text}`).join("; ");
        return <span title={told}>{told}</span>;
      },
    }),
    ...order.map(
      ({ name, index }): Column<Row> => ({
        key: name,
        label: name,
        width: 120,
        render: ({ values, reasons }) => (
          <Cell value={values[index] ?? null} bad={reasons.some((each) => each.feature === name)} />
        ),
      }),
    ),
  ];
}

function Cell({ value, bad }: { value: string | null; bad: boolean }) {
  return (
    <Text
      as="span"
      title={value ?? "missing"}
      colorPalette="failed"
      bg={bad ? "colorPalette.subtle" : undefined}
      color={bad ? "colorPalette.fg" : value === null ? "fg.muted" : undefined}
      fontWeight={bad ? "semibold" : undefined}
      borderRadius="sm"
      px={bad ? 1 : 0}
    >
      {bad && "✗ "}
      {value ?? "missing"}
    </Text>
  );
}
