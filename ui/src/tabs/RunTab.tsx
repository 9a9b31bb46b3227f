import { Box, Grid } from "@chakra-ui/react";
import { useMemo } from "react";
import { api, refetchAfter, type Schemas } from "src/api/client";
import { DataTable, Empty, QueryView } from "src/components";
import { useQuery } from "src/hooks/useQueryState";
import { ArtifactPanel } from "src/tabs/run/ArtifactPanel";
import { STAGE_COLUMNS } from "src/tabs/run/columns";
import { RunHeader } from "src/tabs/run/RunHeader";
import { rowsOf } from "src/tabs/run/stages";

const BUSY_MS = 3_000;
const ROW_HEIGHT = 54;
const OPEN = "open";

/** The tab on a DAG run: its stages, and the artifacts of that run. */
export function RunTab({ dagId, runId }: { dagId: string; runId: string }) {
  const run = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/stages",
    { params: { path: { dag_id: dagId, run_id: runId } } },
    {
      refetchInterval: (query) =>
        ["running", "queued"].includes(query.state.data?.state ?? "") ? refetchAfter(BUSY_MS, query) : false,
    },
  );
  return <QueryView query={run}>{(found) => <Stages dagId={dagId} run={found} />}</QueryView>;
}

function Stages({ dagId, run }: { dagId: string; run: Schemas["RunStages"] }) {
  const [query, change] = useQuery();
  const rows = useMemo(() => rowsOf(dagId, run), [dagId, run]);
  const opened = rows.find(({ key }) => key === query.get(OPEN));
  if (rows.length === 0) {
    return (
      <Empty title="This run has no pipeline tasks">
        The run has not started, or the DAG had no operators of this package when it ran.
      </Empty>
    );
  }
  return (
    <Grid templateColumns={opened?.artifact ? { base: "1fr", xl: "1fr 380px" } : "1fr"} gap={4} alignItems="start">
      <Box minWidth={0}>
        <DataTable
          label="Stages of the run"
          toolbar={<RunHeader dagId={dagId} run={run} rows={rows} />}
          rows={rows}
          columns={STAGE_COLUMNS}
          rowKey={(row) => row.key}
          rowHeight={ROW_HEIGHT}
          maxHeight="calc(100vh - 285px)"
          initialSort={{ column: "stage", descending: false }}
          opened={opened?.key}
          onOpen={(row) => row.artifact && change({ [OPEN]: row.key === opened?.key ? null : row.key }, { push: true })}
        />
      </Box>
      {opened?.artifact && (
        <ArtifactPanel row={opened} artifact={opened.artifact} onClose={() => change({ [OPEN]: null })} />
      )}
    </Grid>
  );
}
