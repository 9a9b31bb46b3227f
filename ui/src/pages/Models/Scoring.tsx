import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import { api, refetchAfter, type Schemas } from "src/api/client";
import { AppLink, ERROR, LinesAlert, PlainTable, QueryView, StateBadge, Time, WARNING } from "src/components";
import { formatNumber, formatTime } from "src/format";
import { useTimezone } from "src/host";
import { RECORD_MS } from "src/pages/Models/queries";
import { VersionBadge } from "src/pages/Models/versions";
import { airflowDagPath, airflowRunPath } from "src/routes";

type Scored = Schemas["ScoredTask"];

/** What was scored last with a model for which no server runs, and what is due; with `all`, the windows before, too. */
export function Scoring({ dagId, model, all = false }: { dagId: string; model: string; all?: boolean }) {
  const scoring = api.useQuery(
    "get",
    "/api/dags/{dag_id}/models/{model}/scoring",
    { params: { path: { dag_id: dagId, model } } },
    { refetchInterval: (query) => refetchAfter(RECORD_MS, query) },
  );
  return (
    <Box as="section" aria-label="Scoring" borderWidth={1} borderRadius="md" px={4} py={3}>
      <QueryView query={scoring}>
        {({ windows, dags, problems }) => (
          <Stack gap={3} fontSize="sm">
            <HStack gap={3} wrap="wrap">
              <Text fontWeight="semibold" fontSize="md">
                Scoring
              </Text>
              {dags.map((dag) => (
                <Text key={dag.dag_id} color="fg.muted">
                  <AppLink to={airflowDagPath(dag.dag_id)}>{dag.dag_id}</AppLink>
                  {dag.is_paused ? " is paused" : dag.next_run ? ": next window due " : ": no window is planned"}
                  {!dag.is_paused && dag.next_run && <Time at={dag.next_run} />}
                </Text>
              ))}
            </HStack>
            {windows.length > 0 ? (
              <PlainTable
                label="Scored windows"
                rows={all ? windows : windows.slice(0, 1)}
                rowKey={(row) => `${row.dag_id} ${row.run_id} ${row.task_id}`}
                columns={COLUMNS}
              />
            ) : (
              <Text color="fg.muted">
                {dags.length > 0
                  ? "No window was scored yet."
                  : problems.length === 0 && "No DAG that you may read scores tables with this model."}
              </Text>
            )}
            <LinesAlert lines={problems.map((each) => `Windows are not known: ${each}`)} />
          </Stack>
        )}
      </QueryView>
    </Box>
  );
}

const COLUMNS = [
  { label: "Window", cell: (row: Scored) => <Window row={row} /> },
  { label: "State", cell: (row: Scored) => <Ended row={row} /> },
  { label: "Rows", end: true, cell: ({ rows }: Scored) => formatNumber(rows) },
  { label: "Failed", end: true, cell: (row: Scored) => <FailedRows row={row} /> },
  { label: "By version", cell: ({ by_version }: Scored) => <Versions rows={by_version} /> },
  { label: "Table", cell: (row: Scored) => <Tables row={row} /> },
];

function Window({ row: { start, end } }: { row: Scored }) {
  const zone = useTimezone();
  const [from, to] = [start, end].map((each) => each && formatTime(each, zone).slice(0, -3));
  return from || to ? (
    <Text whiteSpace="nowrap">
      {from ?? "…"} to {to ?? "…"}
    </Text>
  ) : (
    <Text color="fg.muted">all rows</Text>
  );
}

function Ended({ row: { dag_id, run_id, state, at, why } }: { row: Scored }) {
  return (
    <>
      <AppLink to={airflowRunPath(dag_id, run_id)} title={run_id} aria-label={`Run ${run_id}: ${state}`}>
        <StateBadge state={state} />
      </AppLink>{" "}
      <Time at={at} />
      {why && (
        <Text color={ERROR} maxW="md" overflowWrap="anywhere">
          {why}
        </Text>
      )}
    </>
  );
}

function FailedRows({ row: { rows, failed } }: { row: Scored }) {
  const total = Object.values(failed).reduce((sum, each) => sum + each, 0);
  return (
    <Text color={total > 0 ? ERROR : undefined} title="Rows on which the canary failed: the champion scored them">
      {rows === null ? "–" : formatNumber(total)}
    </Text>
  );
}

function Versions({ rows }: { rows: Readonly<Record<string, number>> }) {
  return (
    <HStack gap={2} wrap="wrap">
      {Object.entries(rows).map(([version, count]) => (
        <HStack key={version} gap={1}>
          <VersionBadge version={Number(version)} /> {formatNumber(count)}
        </HStack>
      ))}
    </HStack>
  );
}

/** Whether the tasks that write tables have: a DAG without one hands its predictions on in another way. */
function Tables({ row: { tables } }: { row: Scored }) {
  const tasks = Object.entries(tables);
  return tasks.length === 0 ? (
    <Text color="fg.muted">written by no task of this DAG</Text>
  ) : (
    tasks.map(([task, state]) => (
      <Text key={task} color={state === "success" ? undefined : WARNING}>
        {state === "success" ? "written" : `not written: ${state.replaceAll("_", " ")}`} ({task})
      </Text>
    ))
  );
}
