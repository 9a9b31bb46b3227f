import { Stack } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { LiveCharts } from "src/pages/Models/LiveCharts";
import { liveOptions, type ModelDetail, useMinutes } from "src/pages/Models/queries";
import { VersionTable } from "src/pages/Models/VersionTable";

/** The last minutes drawn, and all versions. */
export function ServingTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [minutes] = useMinutes();
  const { data: live } = useQuery(liveOptions(dagId, detail.name, minutes));
  return (
    <Stack gap={4}>
      {live?.series && <LiveCharts series={live.series} minutes={minutes} decisions={detail.decisions} />}
      <VersionTable dagId={dagId} model={detail.name} onServer={live?.problem === null ? live.versions : undefined} />
    </Stack>
  );
}
