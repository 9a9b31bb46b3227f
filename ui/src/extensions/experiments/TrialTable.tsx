import { Box, Drawer, HStack, Link, Stack, Text } from "@chakra-ui/react";
import {
  api,
  ChoiceFilter,
  CodeBlock,
  type Column,
  column,
  DataTable,
  FilterBar,
  formatDuration,
  formatNumber,
  numberColumn,
  QueryView,
  SideDrawer,
  StateBadge,
  Time,
  useQuery,
  useQueryList,
} from "airflow-hops";
import { useCallback, useMemo } from "react";
import { LuTrophy } from "react-icons/lu";
import { addressOf } from "src/extensions/experiments/queries";
import { StopButton } from "src/extensions/experiments/StopButton";
import { asNumber, paramsOf, type StudyDetail, type Trial } from "src/extensions/experiments/trials";

const MOST_PARAMS = 6;

/** All trials of a study; one that has ended opens its run. */
export function TrialTable(props: { dagId: string; study: StudyDetail; trials: readonly Trial[]; onStop: () => void }) {
  const { dagId, study, trials, onStop } = props;
  const [query, change] = useQuery();
  const [states] = useQueryList("state");
  const shown = useMemo(
    () => trials.filter((trial) => !states.length || states.includes(trial.state)),
    [trials, states],
  );
  const open = useCallback((run: string) => change({ run }, { push: true }), [change]);
  const openLog = useCallback((trial: number) => change({ trial: String(trial) }, { push: true }), [change]);
  const columns = useMemo(() => columnsOf(dagId, study, onStop, open, openLog), [dagId, study, onStop, open, openLog]);
  const opened = query.get("run");
  const logOf = Number.parseInt(query.get("trial") ?? "", 10);
  const table = (
    <DataTable
      label="Trials"
      name="trials"
      rows={shown}
      columns={columns}
      rowKey={({ number }) => String(number)}
      initialSort={{ column: "number", descending: true }}
      maxHeight="60vh"
      onOpen={(trial) => trial.training !== null && open(trial.training)}
      opened={opened && String(trials.find(({ training }) => training === opened)?.number ?? "")}
      toolbar={
        <FilterBar summary={`${formatNumber(shown.length)} of ${formatNumber(trials.length)} trials`}>
          <ChoiceFilter
            name="state"
            label="State"
            choices={Object.entries(study.counts).map(([value, count]) => ({ value, count }))}
          />
        </FilterBar>
      }
    />
  );
  return (
    <>
      {table}
      {logOf >= 0 && <TrialLog dagId={dagId} study={study} trial={logOf} onClose={() => change({ trial: null })} />}
    </>
  );
}

function columnsOf(
  dagId: string,
  study: StudyDetail,
  onStop: () => void,
  onOpen: (run: string) => void,
  onLog: (trial: number) => void,
): Column<Trial>[] {
  return [
    column("number", "Trial", {
      fixed: true,
      width: 96,
      descendingFirst: true,
      value: ({ number }) => number,
      render: ({ number }) => (
        <HStack gap={1.5}>
          {number}
          {number === study.best && <LuTrophy aria-label="the best so far" />}
        </HStack>
      ),
    }),
    column("state", "State", {
      width: 190,
      value: ({ state }) => state,
      render: (trial) => (
        <HStack gap={2}>
          <StateBadge state={trial.state} />
          {trial.state === "running" && <StopButton dagId={dagId} study={study} trial={trial.number} onStop={onStop} />}
        </HStack>
      ),
    }),
    ...study.metrics.map((name, metric) =>
      numberColumn(`value.${name}`, name, ({ values }: Trial) => values[metric], {
        width: widthFor(name),
        help: `${name}, to ${study.directions[metric]}`,
        descendingFirst: study.directions[metric] !== "minimize",
        format: (value) => formatNumber(value, 5),
      }),
    ),
    ...paramsOf(study.columns).map(
      (name, place): Column<Trial> => ({
        key: `param.${name}`,
        label: name,
        width: widthFor(name),
        optional: place >= MOST_PARAMS,
        value: ({ params }) => asNumber(params[name]) ?? params[name],
        render: ({ params }) => <Text title={params[name]}>{written(params[name])}</Text>,
      }),
    ),
    numberColumn("seconds", "Duration", ({ seconds }) => seconds, {
      width: 104,
      render: ({ seconds, taken_from }) => (taken_from === null ? formatDuration(seconds) : "taken over"),
    }),
    column("reason", "Reason", {
      width: 320,
      value: ({ reason }) => reason || null,
      render: (trial) => (
        <HStack gap={2}>
          <Box title={said(trial)} truncate>
            {said(trial)}
          </Box>
          {trial.state === "failed" && (
            <Link
              as="button"
              color="fg.info"
              flexShrink={0}
              aria-label={`Log of trial ${trial.number}`}
              onClick={(event) => {
                event.stopPropagation();
                onLog(trial.number);
              }}
            >
              Log
            </Link>
          )}
        </HStack>
      ),
    }),
    column("run", "Run", {
      width: 104,
      render: ({ number, training }) =>
        training === null ? (
          "–"
        ) : (
          <Link
            as="button"
            color="fg.info"
            aria-label={`Open the run of trial ${number}`}
            onClick={() => onOpen(training)}
          >
            Open
          </Link>
        ),
    }),
    column("started", "Started", {
      width: 118,
      optional: true,
      value: ({ started }) => started,
      render: ({ started }) => <Time at={started} />,
    }),
    numberColumn("tries", "Tries", ({ tries }) => tries, {
      width: 80,
      help: "More than one where the search was killed while it ran",
      optional: true,
    }),
  ];
}

const widthFor = (name: string): number => Math.min(Math.max(name.length * 8 + 36, 84), 200);

function written(value: string | undefined): string {
  const number = asNumber(value);
  return value === undefined ? "–" : number === null ? value : formatNumber(number);
}

/** Why a trial ended as it did, or where its values are from. */
function said({ reason, taken_from }: Trial): string {
  return reason || (taken_from === null ? "" : `the values of trial ${taken_from}, which was the same`);
}

interface Props {
  dagId: string;
  study: StudyDetail;
  trial: number;
  onClose: () => void;
}

/** Why a trial failed, and the last lines of its log, over the page. */
function TrialLog({ dagId, study, trial, onClose }: Props) {
  const { path, query } = addressOf(dagId, study).params;
  const found = api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{instance}/log", {
    params: { path, query: { ...query, trial } },
  });
  return (
    <SideDrawer onClose={onClose} header={<Drawer.Title>Trial {trial}</Drawer.Title>}>
      <QueryView query={found}>
        {({ reason, text }) => (
          <Stack gap={3}>
            <Text overflowWrap="anywhere">{reason}</Text>
            {text ? (
              <CodeBlock code={text} label={`the last lines of trial ${trial}`} />
            ) : (
              <Text color="fg.muted">Nothing of its log was kept.</Text>
            )}
          </Stack>
        )}
      </QueryView>
    </SideDrawer>
  );
}
