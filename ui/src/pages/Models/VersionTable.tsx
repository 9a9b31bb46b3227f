import { Box, Code, chakra, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import {
  AppLink,
  type Column,
  CopyButton,
  column,
  DataTable,
  LinesAlert,
  numberColumn,
  QueryView,
  StateBadge,
  Time,
} from "src/components";
import { countOf, formatList, shortRun } from "src/format";
import { useExtensions } from "src/hooks/useExtensions";
import { useQuery as useAddress } from "src/hooks/useQueryState";
import { cardAddress, useVersions } from "src/pages/Models/queries";
import { VersionBadge } from "src/pages/Models/versions";
import { metricHeading, titleOf } from "src/pages/Models/words";
import { airflowRunPath, lineagePath, runsPath } from "src/routes";

type Version = Schemas["RegisteredVersion"];
type OnServer = Schemas["LiveVersion"];
/** With what the server tells of it: null where it is not loaded, undefined where the server does not answer. */
type Row = Version & { server: OnServer | null | undefined };

const EVALUATION = "evaluation.";
const SHOWN_METRICS = 3;

/** All versions: what each is, what it was worth, who made it. A click opens its evaluation. */
export function VersionTable({ dagId, model, onServer }: { dagId: string; model: string; onServer?: OnServer[] }) {
  const [, change] = useAddress();
  const query = useVersions(dagId, model);
  const versions = useMemo(() => {
    const all = query.data?.pages.flatMap(({ entries }) => entries) ?? [];
    return [...new Map(all.map((each) => [each.version, each])).values()]; // a new one moves others to the next page
  }, [query.data]);
  const unknown = versions.flatMap(({ version, unmeasured }) => (unmeasured ? [`v${version} (${unmeasured})`] : []));
  const total = query.data?.pages.at(-1)?.total_entries ?? 0;
  const rows = versions.map((version): Row => {
    return { ...version, server: onServer && (onServer.find((each) => each.version === version.version) ?? null) };
  });
  const cards = useExtensions()("model_cards");
  const columns = useMemo(() => {
    const all = columnsFor(dagId, model, versions, cards);
    // A part of the versions is not sorted: the best of it need not be the best of all.
    return versions.length < total ? all.map((each) => ({ ...each, value: undefined })) : all;
  }, [dagId, model, versions, total, cards]);
  return (
    <QueryView query={query}>
      {() => (
        <Box>
          <LinesAlert lines={[unknown.length > 0 && `Figures are not known of ${formatList(unknown)}.`]} />
          <DataTable
            label="Versions"
            name="v"
            rows={rows}
            rowKey={({ version }) => String(version)}
            rowHeight={42}
            initialSort={{ column: "version", descending: true }}
            onOpen={({ version }) => change({ tab: "evaluation", version: String(version) }, { push: true })}
            columns={columns}
            onEnd={() => query.hasNextPage && !query.isFetching && !query.isError && void query.fetchNextPage()}
          />
          {total > 1 && (
            <Text mt={1} fontSize="xs" color="fg.muted">
              {total > versions.length && `${countOf(versions.length, total, "version")}, more as you scroll. `}
              Each version's figures are of the rows of its own evaluation; Evaluation compares it with the champion of
              its time on the same rows.
            </Text>
          )}
        </Box>
      )}
    </QueryView>
  );
}

export function columnsFor(dagId: string, model: string, versions: readonly Version[], cards: boolean): Column<Row>[] {
  const metrics = [...new Set(versions.flatMap(({ metrics: all }) => Object.keys(all)))]
    .filter((name) => name.startsWith(EVALUATION) && !name.startsWith(`${EVALUATION}champion_`))
    .toSorted((a, b) => Number(b.endsWith("_auc")) - Number(a.endsWith("_auc")));
  return [
    column("version", "Version", {
      fixed: true,
      width: 170,
      descendingFirst: true,
      value: ({ version }) => version,
      render: ({ version, role }) => (
        <HStack gap={2}>
          <VersionBadge version={version} />
          {role && <StateBadge state={role} size="sm" />}
        </HStack>
      ),
    }),
    column("state", "On the server", {
      width: 120,
      value: ({ server }) => server?.state,
      render: ({ server }) => <State server={server} />,
    }),
    ...metrics.map((name, index) => metricColumn(name, index >= SHOWN_METRICS)),
    column("created", "Deployed", {
      width: 115,
      descendingFirst: true,
      value: ({ created_at }) => created_at,
      render: ({ created_at }) => <Time at={created_at} />,
    }),
    column("run", "Made by", {
      width: 200,
      minWidth: 120,
      value: ({ made_by }) => made_by?.run_id,
      render: ({ made_by }) =>
        made_by ? (
          <AppLink to={airflowRunPath(made_by.dag_id, made_by.run_id)} title={`${made_by.dag_id}: ${made_by.run_id}`}>
            {shortRun(made_by.run_id)}
          </AppLink>
        ) : (
          "–"
        ),
    }),
    column("event", "Last decision", {
      width: 220,
      minWidth: 130,
      value: ({ last_event }) => last_event?.at,
      render: ({ last_event }) =>
        last_event ? (
          <span title={last_event.why}>
            {titleOf(last_event)}, <Time at={last_event.at} />
          </span>
        ) : (
          "not deployed"
        ),
    }),
    column("links", "More", {
      width: 160,
      render: ({ version, trained_by }) => (
        <HStack gap={3}>
          {trained_by && <AppLink to={runsPath(trained_by.dag_id, { run: trained_by.run_id })}>Run</AppLink>}
          <AppLink to={lineagePath(dagId, { model, version })}>Lineage</AppLink>
          {cards && (
            <chakra.a href={cardAddress(dagId, model, version)} download color="fg.info" title="In Markdown">
              Card
            </chakra.a>
          )}
        </HStack>
      ),
    }),
    column("fingerprint", "Fingerprint", {
      optional: true,
      width: 150,
      value: ({ fingerprint }) => fingerprint,
      render: ({ fingerprint }) =>
        fingerprint ? (
          <HStack gap={1}>
            <Code size="sm" title={fingerprint}>
              {fingerprint.slice(0, 12)}
            </Code>
            <CopyButton text={fingerprint} label="Copy the fingerprint" />
          </HStack>
        ) : (
          "–"
        ),
    }),
    numberColumn("requests", "Requests", ({ server }) => server?.requests, {
      optional: true,
      help: "Since the server's start",
    }),
  ];
}

function metricColumn(name: string, optional: boolean): Column<Row> {
  return numberColumn(name, metricHeading(name), ({ metrics }) => metrics[name], {
    width: 105,
    minWidth: 90,
    optional,
    help: "On the rows of the version's own evaluation",
  });
}

function State({ server }: { server: OnServer | null | undefined }) {
  if (server === undefined) {
    return <Text color="fg.muted">unknown</Text>;
  }
  if (server === null || server.state === "END") {
    return <Text color="fg.muted">not loaded</Text>;
  }
  const { error, state } = server;
  return (
    <StateBadge state={error ? "error" : state === "AVAILABLE" ? "success" : "running"} size="sm" title={error ?? ""}>
      {error ? "error" : state.toLowerCase()}
    </StateBadge>
  );
}
