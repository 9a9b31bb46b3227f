import { Box, Button, Code, HStack, Stack, Text } from "@chakra-ui/react";
import {
  type Column,
  column,
  DataTable,
  Empty,
  formatNumber,
  instanceLabel,
  instanceOf,
  LinesAlert,
  numberColumn,
  plural,
  QueryView,
  Time,
  useQuery,
} from "airflow-hops";
import { useState } from "react";
import { useStudies } from "src/extensions/experiments/queries";
import { bestInWords, countsInWords, StudyState } from "src/extensions/experiments/StudyHeader";
import { StudyView } from "src/extensions/experiments/StudyView";
import { parseStudy, type Study, studyKey } from "src/extensions/experiments/trials";

/** How many studies are shown at first, and how many more at a time. */
const PAGE = 50;
const MOST = 1000;

const COLUMNS: Column<Study>[] = [
  column("name", "Study", {
    fixed: true,
    width: 236,
    value: ({ name }) => name,
    render: ({ name }) => <Text title={name}>{name}</Text>,
  }),
  column("task", "Task", {
    width: 120,
    value: ({ task_id, ...position }) => `${task_id} ${instanceOf(position)}`,
    render: ({ task_id, ...position }) => `${task_id}${instanceLabel(position)}`,
  }),
  column("state", "State", {
    width: 112,
    value: ({ state }) => state,
    render: (study) => <StudyState study={study} />,
  }),
  numberColumn("trials", "Trials", ({ done }) => done, {
    width: 150,
    render: ({ done, trials }) => `${formatNumber(done)} of ${formatNumber(trials)}`,
  }),
  column("counts", "Of them", {
    width: 316,
    render: (study) => <Text title={countsInWords(study)}>{countsInWords(study)}</Text>,
  }),
  column("best", "Best", {
    width: 220,
    render: (study) => <Text title={bestInWords(study)}>{bestInWords(study)}</Text>,
  }),
  { key: "program", label: "Function", width: 200, optional: true, render: ({ program }) => program },
  { key: "sampler", label: "Sampler", optional: true, value: ({ sampler }) => sampler },
  { key: "pruner", label: "Pruner", optional: true, value: ({ pruner }) => pruner },
  column("started", "Started", {
    width: 118,
    descendingFirst: true,
    value: ({ started }) => started,
    render: ({ started }) => <Time at={started} />,
  }),
];

/** The hyperparameter searches of a pipeline, or one of them. */
export function StudiesView({ dagId }: { dagId: string }) {
  const [query, change] = useQuery();
  const opened = parseStudy(query.get("study") ?? "");
  return opened === null ? (
    <Studies dagId={dagId} onOpen={(study) => change({ study: studyKey(study) }, { push: true })} />
  ) : (
    <StudyView key={studyKey(opened)} dagId={dagId} study={opened} />
  );
}

function Studies({ dagId, onOpen }: { dagId: string; onOpen: (study: Study) => void }) {
  const [limit, setLimit] = useState(PAGE);
  const query = useStudies(dagId, limit);
  return (
    <QueryView query={query}>
      {({ entries: studies, total_entries, problems: damaged }) => (
        <Stack gap={3}>
          <LinesAlert status="error" title={`${plural(damaged.length, "study")} cannot be read`} lines={damaged} />
          {studies.length > 0 ? (
            <DataTable
              label="Studies"
              name="studies"
              rows={studies}
              columns={COLUMNS}
              rowKey={studyKey}
              initialSort={{ column: "started", descending: true }}
              onOpen={onOpen}
              toolbar={
                <HStack minH={9} gap={3} fontSize="sm" color="fg.muted">
                  {plural(total_entries, "study")}
                  {studies.length < total_entries && `, the newest ${studies.length} of them`}
                  {studies.length < total_entries && limit < MOST && (
                    <Button size="xs" variant="outline" onClick={() => setLimit(limit + PAGE)}>
                      Show {Math.min(PAGE, total_entries - studies.length)} more
                    </Button>
                  )}
                </HStack>
              }
            />
          ) : (
            damaged.length === 0 && (
              <Empty title="No hyperparameter searches yet">
                <Box>
                  A task of <Code>SearchOperator</Code> or <Code>@task.search</Code> makes a study: its trials, the best
                  so far, and what mattered are shown here while it runs.
                </Box>
              </Empty>
            )
          )}
        </Stack>
      )}
    </QueryView>
  );
}
