import { Box, Skeleton, Text } from "@chakra-ui/react";
import { LuUnplug } from "react-icons/lu";
import type { Activity, Pipeline } from "src/api/pipelines";
import { WARNING } from "src/components/colors";
import { Tooltip } from "src/components/Tooltip";
import { TwoLines } from "src/components/TwoLines";
import { type Share, TrafficBar } from "src/pages/Models/TrafficBar";

function sharesOf(model: Pipeline["model"], activity: Activity | undefined): Share[] {
  const live = activity?.traffic?.versions.filter(({ traffic_percent }) => (traffic_percent ?? 0) > 0) ?? [];
  if (live.length > 0) {
    return live.map(({ version, traffic_percent }) => ({ version, percent: traffic_percent ?? 0 }));
  }
  return [model?.champion, model?.challenger]
    .filter((served) => served !== null && served !== undefined)
    .map(({ version, traffic_percent }) => ({ version, percent: traffic_percent }));
}

/** How the traffic is split: as the server says, or as it was decided where the server does not answer. */
export function TrafficCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { model } = pipeline;
  if (!model?.champion) {
    return <Text color="fg.muted">–</Text>;
  }
  const shares = sharesOf(model, activity);
  const label = shares.map(({ version, percent }) => `v${version} ${percent}%`).join(" · ");
  const problem = activity?.traffic?.problem ?? null;
  return (
    <TwoLines
      first={
        <Box flex={1} pe={2}>
          <TrafficBar size="thin" shares={shares} words={`${label}${activity && !problem ? "" : ", as decided"}`} />
        </Box>
      }
      second={
        <>
          <Text truncate fontVariantNumeric="tabular-nums">
            {label}
          </Text>
          {activity === undefined && (
            <Skeleton height="8px" width="20px" role="status" aria-label="Loading from the server" />
          )}
          {problem !== null && (
            <Tooltip content={`${problem}. The shares shown are the decided ones.`}>
              <Text as="span" color={WARNING} tabIndex={0} role="img" aria-label={problem} flexShrink={0}>
                <LuUnplug />
              </Text>
            </Tooltip>
          )}
        </>
      }
    />
  );
}
