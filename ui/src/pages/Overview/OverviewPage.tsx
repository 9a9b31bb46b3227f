import { SimpleGrid, Stack } from "@chakra-ui/react";
import { Navigate } from "react-router-dom";
import { type Overview, useOverview } from "src/api/pipelines";
import { LoadingBox } from "src/components/Loading";
import { QueryView } from "src/components/QueryView";
import { ChampionSection } from "src/pages/Overview/ChampionSection";
import { DecisionSection } from "src/pages/Overview/DecisionSection";
import { DriftSection } from "src/pages/Overview/DriftSection";
import { RunSection } from "src/pages/Overview/RunSection";
import { ScheduleSection } from "src/pages/Overview/ScheduleSection";
import { Waiting } from "src/pages/Overview/Waiting";
import { overviewPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** A pipeline at a glance: what serves, how it ran, whether it drifts, what waits for a person, what was decided. */
export function OverviewPage() {
  const dagId = useDagId();
  const overview = useOverview(dagId);
  return (
    <QueryView query={overview} loading={<LoadingBox height="480px" />}>
      {(found) =>
        found.pipeline.dag_id === dagId ? (
          <Loaded overview={found} />
        ) : (
          <Navigate replace to={overviewPath(found.pipeline.dag_id)} />
        )
      }
    </QueryView>
  );
}

function Loaded({ overview }: { overview: Overview }) {
  const { pipeline, models } = overview;
  const dagId = pipeline.dag_id;
  return (
    <Stack gap={4}>
      <Waiting overview={overview} />
      {models.map((model) => (
        <ChampionSection
          key={model}
          dagId={dagId}
          model={model}
          metric={model === pipeline.model?.name ? pipeline.model.metric : null}
        />
      ))}
      <SimpleGrid columns={{ base: 1, xl: 2 }} gap={4} alignItems="start">
        <Stack gap={4} minW={0}>
          <RunSection overview={overview} />
          <DecisionSection overview={overview} />
        </Stack>
        <Stack gap={4} minW={0}>
          <DriftSection overview={overview} />
          <ScheduleSection overview={overview} />
        </Stack>
      </SimpleGrid>
    </Stack>
  );
}
