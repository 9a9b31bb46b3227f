import { Box, Text } from "@chakra-ui/react";
import { AppLink } from "src/components/AppLink";
import { ERROR } from "src/components/colors";
import { Time } from "src/components/Time";
import { plural } from "src/format";
import type { Timeline } from "src/pages/Skew/timeline";
import { airflowTaskPath } from "src/routes";

/** The newest failure of a monitoring task, in its own words: what it did not see is not stable. */
export function FailedMonitors({ timeline: { failures, total_failures, source } }: { timeline: Timeline }) {
  const newest = failures.at(-1);
  if (total_failures === null) {
    return (
      <Text fontSize="sm" color="fg.muted">
        Whether monitors failed is not shown: you may not see task instances of {source?.dag_id}.
      </Text>
    );
  }
  return (
    newest && (
      <Box fontSize="sm" role="note">
        <Text color={ERROR} lineClamp={3} title={newest.message ?? undefined}>
          <AppLink to={airflowTaskPath(newest.task)}>{newest.task.task_id}</AppLink> failed <Time at={newest.at} />
          {newest.message && `: ${newest.message}`}
        </Text>
        {total_failures > 1 && (
          <Text color="fg.muted">
            It is the last of {plural(total_failures, "failure")} of monitoring tasks in the time shown
            {total_failures > failures.length && `; the newest ${failures.length} are marked`}.
          </Text>
        )}
      </Box>
    )
  );
}
