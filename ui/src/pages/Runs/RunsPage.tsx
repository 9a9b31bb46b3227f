import { Box, Button, Code, HStack, Link, Stack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import { useMemo } from "react";
import { LuExternalLink } from "react-icons/lu";
import { api, refetchAfter } from "src/api/client";
import { AppLink, DataTable, Dimmed, Empty, ErrorAlert, LinesAlert, LoadingRows, Segments } from "src/components";
import { countOf, plural } from "src/format";
import { useExtensionPages } from "src/hooks/useExtensions";
import { useQuery, useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { columnsOf } from "src/pages/Runs/columns";
import { isLive, namesOf, type Run } from "src/pages/Runs/figures";
import { RunCharts } from "src/pages/Runs/RunCharts";
import { RunDrawer } from "src/pages/Runs/RunDrawer";
import { airflowDagPath } from "src/routes";
import { ExtensionView } from "src/shell/ExtensionView";
import { useDagId } from "src/shell/OfPipeline";

const VIEWS = [
  ["table", "Table"],
  ["curves", "Curves"],
  ["differences", "Differences"],
] as const;

/** Training runs of a pipeline, and views of extensions, such as the studies of its hyperparameter searches. */
export function RunsPage() {
  const dagId = useDagId();
  const [query, change] = useQuery();
  const [view, setView] = useQueryParam("view", "table");
  const { pages, isPending } = useExtensionPages("runs");
  const further = pages.map(({ name, label }) => [name, label] as const);
  const page = pages.find(({ name }) => name === view);
  const opened = query.get("run");
  if (isPending && VIEWS.every(([name]) => name !== view)) {
    return <LoadingRows />;
  }
  return (
    <>
      {page ? (
        <Stack gap={3}>
          <Segments
            label="View"
            value={view}
            onChange={setView}
            items={[...VIEWS, ...further]}
            alignSelf="flex-start"
          />
          <ExtensionView page={page} dagId={dagId} />
        </Stack>
      ) : (
        <TrainingRuns dagId={dagId} further={further} />
      )}
      {opened !== null && (
        <RunDrawer dagId={dagId} runId={opened} onClose={() => change({ run: null, runtab: null })} />
      )}
    </>
  );
}

/** Training runs: sorted, chosen, compared. */
function TrainingRuns({ dagId, further }: { dagId: string; further: readonly (readonly [string, string])[] }) {
  const [query, change] = useQuery();
  const [sort] = useQueryParam("sort");
  const [view, setView] = useQueryParam("view", "table");
  const [compared, setCompared] = useQueryList("compare");
  const { query: found, runs, page } = useRuns(dagId, sort);
  const problems = page?.problems ?? [];
  // Names of columns come from the newest runs, whatever the order.
  const { runs: known } = useRuns(dagId, "");
  const names = useMemo(() => namesOf(known.length ? known : runs), [known, runs]);
  const selected = useMemo(() => new Set(compared), [compared]);
  const chosen = useChosen(dagId, compared, known, runs);
  const columns = useMemo(
    () => columnsOf(dagId, names, view === "curves" || view === "differences" ? compared : []),
    [dagId, names, compared, view],
  );
  const opened = query.get("run");

  if (found.isPending) {
    return <LoadingRows />;
  }
  const failure = found.isError && <ErrorAlert error={found.error} retry={() => void found.refetch()} />;
  if (failure && found.data === undefined) {
    return failure;
  }
  if (runs.length === 0 && problems.length === 0) {
    return <NoRuns dagId={dagId} further={further} onChoose={setView} />;
  }
  return (
    <Stack gap={3}>
      {failure}
      <LinesAlert lines={[problems[0] && `${plural(problems.length, "file")} cannot be used: ${problems[0]}`]} />
      <HStack gap={4} wrap="wrap" justify="space-between">
        <Segments label="View" value={view} onChange={setView} items={[...VIEWS, ...further]} />
        <InMlflow url={page?.mlflow_url} command={page?.mlflow_command} />
      </HStack>
      {view !== "table" && <RunCharts dagId={dagId} view={view} chosen={chosen} runs={runs} names={names} />}
      <Dimmed when={found.isPlaceholderData}>
        <DataTable
          label="Training runs"
          rows={runs}
          columns={columns}
          rowKey={(run) => run.run_id}
          initialSort={{ column: "start_time", descending: true }}
          sorted
          cards
          maxHeight={view === "table" ? "calc(100vh - 260px)" : "45vh"}
          selected={selected}
          onSelect={setCompared}
          onOpen={(run) => change({ run: run.run_id }, { push: true })}
          opened={opened}
          onEnd={() => found.hasNextPage && !found.isFetching && !found.isError && void found.fetchNextPage()}
          toolbar={
            <Summary
              loaded={runs.length}
              all={page?.total_entries ?? runs.length}
              selected={compared.length}
              view={view}
              onCompare={() => setView("curves")}
              onClear={() => setCompared([])}
            />
          }
        />
      </Dimmed>
    </Stack>
  );
}

/** Where MLflow has the runs, with a search: its page, or the command that serves it. */
function InMlflow({ url, command }: { url?: string | null; command?: string | null }) {
  if (url) {
    return (
      <Link href={url} target="_blank" rel="noreferrer" color="fg.info" fontSize="sm">
        Search in MLflow <LuExternalLink aria-hidden size={12} />
      </Link>
    );
  }
  return command ? (
    <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
      To search, start MLflow: <Code>{command}</Code>
    </Text>
  ) : null;
}

/** The runs that are compared, those that are not among the loaded ones included. */
function useChosen(dagId: string, ids: readonly string[], known: readonly Run[], runs: readonly Run[]): Run[] {
  const loaded = useMemo(() => new Map([...known, ...runs].map((run) => [run.run_id, run])), [known, runs]);
  const missing = ids.filter((id) => !loaded.has(id));
  const others = api.useQuery(
    "get",
    "/api/dags/{dag_id}/training-runs",
    { params: { path: { dag_id: dagId }, query: { run_id: missing, limit: 1000 } } },
    { enabled: missing.length > 0 && known.length > 0 },
  );
  return useMemo(() => {
    const all = new Map(loaded);
    for (const run of others.data?.entries ?? []) {
      all.set(run.run_id, run);
    }
    return ids.flatMap((id) => all.get(id) ?? []);
  }, [ids, loaded, others.data]);
}

function Summary(props: {
  loaded: number;
  all: number;
  selected: number;
  view: string;
  onCompare: () => void;
  onClear: () => void;
}) {
  const { loaded, all, selected } = props;
  return (
    <HStack gap={2} minH={9} fontSize="sm" wrap="wrap">
      <Text color="fg.muted" aria-live="polite">
        {countOf(loaded, all, "run")}
        {all > loaded && ", more as you scroll"}
      </Text>
      {selected > 0 && (
        <>
          <Text fontWeight="semibold">{selected} selected</Text>
          {props.view === "table" && (
            <Button size="xs" onClick={props.onCompare}>
              Compare
            </Button>
          )}
          <Button size="xs" variant="ghost" onClick={props.onClear}>
            Clear the selection
          </Button>
        </>
      )}
    </HStack>
  );
}

function NoRuns(props: {
  dagId: string;
  further: readonly (readonly [string, string])[];
  onChoose: (view: string) => void;
}) {
  const { dagId, further, onChoose } = props;
  return (
    <Empty title="No training runs yet">
      <Box>
        Each task that trains, such as <Code>TrainOperator</Code>, records its training, with its parameters, metrics of
        each epoch, code, libraries and cost; so do failed and killed tries.
      </Box>
      <Box mt={2}>
        <AppLink to={airflowDagPath(dagId)}>Trigger {dagId}</AppLink> to see the first one here while it trains.
      </Box>
      {further.map(([name, label]) => (
        <Button key={name} mt={4} size="sm" variant="outline" onClick={() => onChoose(name)}>
          {label}
        </Button>
      ))}
    </Empty>
  );
}

const PAGE = 100;
const LIVE_MS = 3000;

/** Training runs in pages: sorted by the API, asked for again while one of them runs. */
function useRuns(dagId: string, sort: string) {
  const query = api.useInfiniteQuery(
    "get",
    "/api/dags/{dag_id}/training-runs",
    { params: { path: { dag_id: dagId }, query: { sort: sort || "-start_time", limit: PAGE } } },
    {
      pageParamName: "offset",
      initialPageParam: 0,
      getNextPageParam: (page, pages) => (PAGE * pages.length < page.total_entries ? PAGE * pages.length : undefined),
      placeholderData: keepPreviousData,
      refetchInterval: (query) =>
        query.state.data?.pages.some((page) => (page as { entries: Run[] }).entries.some(isLive))
          ? refetchAfter(LIVE_MS, query)
          : false,
    },
  );
  const runs = useMemo<Run[]>(() => query.data?.pages.flatMap((page) => page.entries) ?? [], [query.data]);
  return { query, runs, page: query.data?.pages.at(-1) };
}
