import { Drawer, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { api, refetchAfter, type Schemas } from "src/api/client";
import { ErrorAlert, LoadingBox, QueryView, SideDrawer, StateBadge, TabPanels, WARNING } from "src/components";
import { useQueryParam } from "src/hooks/useQueryState";
import { CurveGrid } from "src/pages/Runs/CurveGrid";
import { isLive, labelOf } from "src/pages/Runs/figures";
import { RunOverview } from "src/pages/Runs/RunOverview";
import { useCurves } from "src/pages/Runs/useCurves";

const LIVE_MS = 2000;

/** All of one run, over the page; which tab is open is in the address. */
export function RunDrawer({ dagId, runId, onClose }: { dagId: string; runId: string; onClose: () => void }) {
  const [tab, setTab] = useQueryParam("runtab", "overview");
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/training-runs/{training_id}",
    { params: { path: { dag_id: dagId, training_id: runId } } },
    {
      refetchInterval: (query) => (query.state.data && isLive(query.state.data) ? refetchAfter(LIVE_MS, query) : false),
    },
  );
  const run = query.data;
  return (
    <SideDrawer
      onClose={onClose}
      header={
        <HStack gap={3} minW={0} wrap={{ base: "wrap", md: "nowrap" }}>
          <Drawer.Title truncate title={run?.name} flex={{ base: "1 0 100%", md: "0 1 auto" }}>
            {run ? labelOf(run) : "Run"}
          </Drawer.Title>
          {run && <StateBadge state={run.status} />}
        </HStack>
      }
    >
      <QueryView query={query}>
        {(found) => (
          <>
            {found.tries.at(-1)?.error && (
              <Text fontSize="sm" color={WARNING} mb={3} whiteSpace="pre-wrap" lineClamp={6}>
                {found.tries.at(-1)?.error}
              </Text>
            )}
            <TabPanels
              opened={tab}
              onOpen={setTab}
              tabs={[
                { name: "overview", label: "Overview", content: <RunOverview dagId={dagId} run={found} /> },
                { name: "curves", label: "Curves", content: <RunCurvesTab dagId={dagId} run={found} /> },
              ]}
            />
          </>
        )}
      </QueryView>
    </SideDrawer>
  );
}

/** The curves of one run, live while it goes on. */
function RunCurvesTab({ dagId, run }: { dagId: string; run: Schemas["TrainingRunDetail"] }) {
  const { curves, isPending, error } = useCurves(dagId, [run]);
  const label = labelOf(run);
  const drawn = useMemo(
    () => [{ run_id: run.run_id, start_time: run.start_time, label }],
    [run.run_id, run.start_time, label],
  );
  if (error !== null) {
    return <ErrorAlert error={error} />;
  }
  return isPending ? <LoadingBox /> : <CurveGrid curves={curves} runs={drawn} />;
}
