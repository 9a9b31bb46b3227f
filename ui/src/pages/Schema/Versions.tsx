import { Box, Heading, HStack, Text } from "@chakra-ui/react";
import { api } from "src/api/client";
import { AppLink, Choice, column, DataTable, QueryView, StateBadge, Time } from "src/components";
import { shortRun } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { Comparison } from "src/pages/Schema/Comparison";
import type { SchemaSummary } from "src/pages/Schema/queries";
import { airflowRunPath, pagePath } from "src/routes";

type Version = SchemaSummary["versions"][number];

/** The versions of a schema, and what differs between any two. */
export function Versions({ dagId, schema }: { dagId: string; schema: SchemaSummary }) {
  const [query, change] = useQuery();
  const { versions } = schema;
  const last = versions.at(-1)?.version ?? 1;
  const number = (name: string, initial: number) => {
    const given = Number(query.get(name));
    return versions.some(({ version }) => version === given) ? given : initial;
  };
  const after = number("after", versions.find(({ in_force }) => in_force)?.version ?? last);
  const before = number("before", Math.max(after - 1, 1));
  const choices = versions.map(({ version, in_force }) => ({
    value: String(version),
    label: `version ${version}${in_force ? " (in force)" : ""}`,
  }));
  const compare = (one: number, other: number) => change({ before: String(one), after: String(other) });
  return (
    <Box>
      <DataTable
        label="Versions of the schema"
        name="versions"
        rows={versions}
        rowKey={({ version }) => String(version)}
        initialSort={{ column: "version", descending: true }}
        maxHeight="38vh"
        opened={String(after)}
        onOpen={({ version }) => compare(Math.max(version - 1, 1), version)}
        columns={[
          column<Version>("version", "Version", {
            fixed: true,
            width: 150,
            descendingFirst: true,
            value: ({ version }) => version,
            render: (row) => <VersionNumber dagId={dagId} schema={schema} version={row} />,
          }),
          column<Version>("at", "When", {
            width: 130,
            descendingFirst: true,
            value: ({ recorded_at }) => recorded_at,
            render: ({ recorded_at }) => <Time at={recorded_at} />,
          }),
          column<Version>("by", "Approved by", {
            width: 140,
            value: ({ approved_by }) => approved_by,
            render: ({ approved_by }) => approved_by || <Text color="fg.muted">automatic</Text>,
          }),
          column<Version>("note", "Why", {
            width: 380,
            value: ({ note }) => note,
            render: ({ note }) => <span title={note}>{note || "–"}</span>,
          }),
          column<Version>("run", "In run", {
            width: 280,
            value: ({ run_id }) => run_id,
            render: ({ run_id }) =>
              run_id ? (
                <AppLink to={airflowRunPath(dagId, run_id)} title={run_id}>
                  {shortRun(run_id)}
                </AppLink>
              ) : (
                "–"
              ),
          }),
        ]}
      />
      {versions.length > 1 ? (
        <Box mt={5}>
          <HStack mb={3} gap={2} wrap="wrap">
            <Heading size="sm">Compare</Heading>
            <Choice
              quiet
              size="sm"
              label="Before"
              values={choices}
              value={String(before)}
              onChange={(chosen) => compare(Number(chosen), after)}
            />
            <Text>with</Text>
            <Choice
              quiet
              size="sm"
              label="After"
              values={choices}
              value={String(after)}
              onChange={(chosen) => compare(before, Number(chosen))}
            />
          </HStack>
          <Changes dagId={dagId} name={schema.name} before={before} after={after} />
        </Box>
      ) : (
        <Text mt={3} fontSize="sm" color="fg.muted">
          There is one version so far. An edit, an approved proposal, or{" "}
          <code>
            airflow hops schema approve {dagId} {schema.name} new.pbtxt
          </code>{" "}
          creates another one.
        </Text>
      )}
    </Box>
  );
}

function VersionNumber({ dagId, schema, version }: { dagId: string; schema: SchemaSummary; version: Version }) {
  return (
    <HStack gap={2}>
      <AppLink
        to={pagePath("schema", dagId, { schema: schema.name, version: version.version })}
        title="Show this version"
      >
        {version.version}
      </AppLink>
      {version.in_force && <StateBadge state="ok">in force</StateBadge>}
    </HStack>
  );
}

function Changes({ dagId, name, before, after }: { dagId: string; name: string; before: number; after: number }) {
  const comparison = api.useQuery("get", "/api/dags/{dag_id}/schemas/{name}/changes", {
    params: { path: { dag_id: dagId, name }, query: { before, after } },
  });
  return (
    <QueryView query={comparison}>
      {(found) => <Comparison comparison={found} before={`version ${before}`} after={`version ${after}`} />}
    </QueryView>
  );
}
