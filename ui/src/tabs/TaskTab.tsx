import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import { ApiError, api, refetchAfter, type Schemas } from "src/api/client";
import { AppLink, column, DataTable, Empty, Notice, QueryView, StateBadge, Time } from "src/components";
import { TensorBoardLink } from "src/pages/Runs/TensorBoardLink";
import { airflowTaskPath, instanceLabel, instanceOf, runsPath, type TaskRef } from "src/routes";
import { ENDED } from "src/tabs/states";
import { ArtifactResult } from "src/tabs/task/ArtifactResult";
import { TaskProgress } from "src/tabs/task/TaskProgress";

const LIVE_MS = 1500;

type Result = Schemas["TaskResult"];

interface Props {
  dagId: string;
  runId: string;
  taskId: string;
  mapIndex: number;
  iteration: number;
}

/** The tab on a task instance: progress and learning curves while it runs, what it has made afterwards. */
export function TaskTab({ dagId, runId, taskId, mapIndex, iteration }: Props) {
  const task: TaskRef = { dag_id: dagId, run_id: runId, task_id: taskId, map_index: mapIndex, iteration };
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{instance}",
    { params: { path: { dag_id: dagId, run_id: runId, task_id: taskId, instance: instanceOf(task) } } },
    {
      refetchInterval: (query) =>
        query.state.data && !hasEnded(query.state.data) ? refetchAfter(LIVE_MS, query) : false,
    },
  );
  if (query.error instanceof ApiError && query.error.status === 404) {
    return <Empty title="Nothing to show for this task">{query.error.message}</Empty>;
  }
  return <QueryView query={query}>{(result) => <TaskResult task={task} result={result} />}</QueryView>;
}

function hasEnded(result: Result): boolean {
  const states = result.instances.length > 0 ? result.instances.map(({ state }) => state) : [result.state];
  return states.every((state) => state !== null && ENDED.has(state));
}

function TaskResult({ task, result }: { task: TaskRef; result: Result }) {
  if (result.instances.length > 0) {
    return <Instances task={task} instances={result.instances} />;
  }
  const isTraining = result.stage === "training";
  return (
    <Stack gap={4}>
      {(result.state !== "success" || isTraining) && (
        <HStack gap={4} wrap="wrap" fontSize="sm" minH={6}>
          {result.state !== "success" && <StateBadge state={result.state} />}
          {result.try_number > 1 && (
            <Text>
              try {result.try_number} of {result.max_tries + 1}
            </Text>
          )}
          {result.state === "running" && (
            <Text color="fg.muted">
              started <Time at={result.started_at} />
            </Text>
          )}
          {isTraining && result.started_at && (
            <HStack gap={4} marginInlineStart="auto">
              <AppLink to={runsPath(task.dag_id)}>Compare with other runs</AppLink>
              <TensorBoardLink task={task} />
            </HStack>
          )}
        </HStack>
      )}
      {result.state === "failed" && <Failure task={task} error={result.error} />}
      {result.state === "up_for_retry" && result.error !== null && <Failure task={task} error={result.error} />}
      {(result.progress.length > 0 || result.state === "running") && <TaskProgress result={result} />}
      {result.artifacts.map((artifact) => (
        <ArtifactResult key={artifact.kind} artifact={artifact} />
      ))}
      {result.artifacts.length === 0 && result.progress.length === 0 && result.error === null && (
        <Nothing result={result} />
      )}
    </Stack>
  );
}

function Failure({ task, error }: { task: TaskRef; error: string | null }) {
  return (
    <Notice status="error" alignItems="flex-start" title="The task failed">
      <Box
        whiteSpace="pre-wrap"
        maxHeight="20rem"
        overflowY="auto"
        tabIndex={0}
        fontFamily={error?.includes("Traceback") ? "mono" : undefined}
      >
        {error ?? "See the log for the reason."}
      </Box>
      <AppLink to={airflowTaskPath(task)}>Log</AppLink>
    </Notice>
  );
}

const NOTHING: Record<string, [string, string]> = {
  success: ["This task produced no artifact", "Its return value is under XCom."],
  skipped: ["This task was skipped", "An upstream task was skipped; otherwise, see the task's log."],
  upstream_failed: ["An upstream task failed", "This task has not run."],
};

function Nothing({ result }: { result: Result }) {
  if (result.state === "running" || result.state === "failed" || result.state === "up_for_retry") {
    return null;
  }
  if (result.state === "skipped" && result.skipped !== null) {
    return <Empty title="This task was skipped">{result.skipped}</Empty>;
  }
  const [title, text] = NOTHING[result.state ?? ""] ?? [
    "This task has not started",
    "Its progress appears here as soon as it does.",
  ];
  return <Empty title={title}>{text}</Empty>;
}

/** The instances of a mapped task, or of a task in a loop. */
function Instances({ task, instances }: { task: TaskRef; instances: readonly Result[] }) {
  return (
    <DataTable
      label="Instances of the task"
      rows={instances}
      rowKey={instanceOf}
      initialSort={{ column: "index", descending: false }}
      columns={[
        column<Result>("index", "Instance", {
          fixed: true,
          value: ({ iteration, map_index }) => iteration * 1e6 + map_index,
          render: ({ map_label: name, map_index, iteration }) => (
            <AppLink to={airflowTaskPath({ ...task, map_index, iteration })}>
              {iteration < 0 && name !== null
                ? name
                : `${task.task_id}${instanceLabel({ map_index, iteration }, name)}`}
            </AppLink>
          ),
        }),
        column<Result>("state", "State", {
          value: ({ state }) => state,
          render: ({ state }) => <StateBadge state={state} />,
        }),
      ]}
    />
  );
}
